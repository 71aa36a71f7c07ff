"""Pictures of the screens. `pytest --snapshot-update` accepts new ones, after they were looked at.

Those in docs/screenshots are what the README shows, so they are made here and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboards.app import TopApp
from tests.dashboards.conftest import NOW
from tests.dashboards.runs import cpu_cluster

PICTURES = Path(__file__).parents[2] / "docs" / "screenshots"
Compare = Callable[..., bool]


def test_cluster_at_80x24(snap_compare: Compare, demo: Callable[[], TopApp]) -> None:
    assert snap_compare(demo(), terminal_size=(80, 24), press=["j", "j", "j", "l", "l", "l"])


def test_run_at_80x24(snap_compare: Compare, demo: Callable[[], TopApp]) -> None:
    assert snap_compare(demo(), terminal_size=(80, 24), press=["2"])


def test_machines_without_gpus_at_80x24(snap_compare: Compare) -> None:
    assert snap_compare(TopApp(cpu_cluster(NOW)), terminal_size=(80, 24))


def test_cluster_at_200x50(snap_compare: Compare, demo: Callable[[], TopApp]) -> None:
    assert snap_compare(demo(), terminal_size=(200, 50), press=["p", "p", "p"])


def test_no_color_at_80x24(
    snap_compare: Compare, demo: Callable[[], TopApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(demo(), terminal_size=(80, 24), press=["j"])


def picture(app: TopApp, size: tuple[int, int], keys: list[str]) -> str:
    async def take() -> str:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()
            return app.export_screenshot(title="clusterctl top")

    return re.sub(r"terminal-\d+-", "terminal-", asyncio.run(take()))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("cluster", ["j", "j", "j", "l", "l", "l"]),
        ("run", ["2"]),
        ("node", ["j", "j", "j", "enter"]),
        ("demo", []),
    ],
)
def test_pictures_of_the_readme_are_those_of_this_version(
    name: str, keys: list[str], demo: Callable[[], TopApp], request: Any
) -> None:
    app = TopApp(cpu_cluster(NOW)) if name == "demo" else demo()
    size = (110, 34) if name != "node" else (110, 28)
    taken = picture(app, size, keys)
    path = PICTURES / f"{name}.svg"
    if request.config.getoption("update_snapshots", default=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(taken)
    assert path.read_text() == taken, "look at it, then: pytest --snapshot-update"
