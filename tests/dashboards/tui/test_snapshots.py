"""Pictures of the screens. `pytest --snapshot-update` accepts new ones, after they were looked at.

Those in docs/screenshots are what the README shows, so they are made here and nowhere else.
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from dashboards.feeds.run_dir import RunDirFeed
from dashboards.model.samples import EventSample, Tick
from dashboards.tui.app import TopApp
from dashboards.tui.screens.stacks import StacksScreen
from tests.clusterctl.runs.attempts_of import three_attempts
from tests.dashboards.conftest import NOW
from tests.dashboards.driving import quiet
from tests.dashboards.runs import FixedFeed, cpu_cluster
from tests.trainer.runlog.test_slow_ranks import entry, said

PICTURES = Path(__file__).parents[3] / "docs" / "screenshots"
Compare = Callable[..., bool]


async def settled(pilot: Pilot[Any]) -> None:
    """Until the collection of stacks that goes on is over."""
    deadline = time.monotonic() + 30
    screen = pilot.app.screen
    while (
        isinstance(screen, StacksScreen)
        and screen.panel.is_collecting
        and time.monotonic() < deadline
    ):
        await asyncio.sleep(0.05)
    await quiet(pilot)


def pressing(*keys: str) -> Callable[[Pilot[Any]], Any]:
    async def press(pilot: Pilot[Any]) -> None:
        await quiet(pilot)
        for key in keys:
            await pilot.press(key)
            await quiet(pilot)
            await settled(pilot)

    return press


CURSOR_ON_ODD = ("j", "j", "j", "l", "l", "l")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "size", "keys"),
    [
        ("cluster", (80, 24), CURSOR_ON_ODD),
        ("outliers", (80, 24), (*CURSOR_ON_ODD, "o")),
        ("temperatures", (200, 50), ("p", "p", "p")),
        ("node", (80, 24), (*CURSOR_ON_ODD, "enter")),
        ("node", (160, 50), (*CURSOR_ON_ODD, "enter")),
        ("run", (80, 24), ("3",)),
        ("alerts", (80, 24), ("4", "j", "a")),
        ("stacks", (80, 24), ("5", "enter")),
        ("stack", (80, 24), ("5", "enter", "enter")),
        ("small", (50, 14), ()),
    ],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else "x".join(map(str, value))
        if value and isinstance(value[0], int)
        else ""
    ),
)
def test_screen(
    name: str, size: tuple[int, int], keys: tuple[str, ...], snap_compare: Compare, demo: Callable[[], TopApp]
) -> None:  # fmt: skip
    assert snap_compare(demo(), terminal_size=size, run_before=pressing(*keys))


@pytest.mark.long
def test_machines_without_gpus(snap_compare: Compare) -> None:
    assert snap_compare(TopApp(cpu_cluster(NOW)), terminal_size=(80, 24))


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=lambda size: "x".join(map(str, size)))
def test_run_that_was_restarted(
    size: tuple[int, int], snap_compare: Compare, tmp_path: Path
) -> None:
    run = three_attempts()
    feed = RunDirFeed(run.write(tmp_path / "001-STDiT3-XL-2"), clock=lambda: run.at_s)
    fixed = FixedFeed((), [*feed.poll(), Tick(run.at_s)], run.at_s)
    assert snap_compare(TopApp(fixed), terminal_size=size, run_before=pressing("3"))


@pytest.mark.long
def test_a_slow_rank_is_in_the_figures_of_the_run_and_in_the_alerts() -> None:
    def slow_cluster() -> TopApp:
        feed = cpu_cluster(NOW)
        feed.samples.insert(-1, EventSample(said(entry(1)), NOW - 3))
        return TopApp(feed)

    run = html.unescape(picture(slow_cluster(), (80, 24), ("3",))).replace("\xa0", " ")
    assert "! rank 1 6% backward" in run
    alerts = html.unescape(picture(slow_cluster(), (80, 24), ("4",))).replace("\xa0", " ")
    assert "demo-1 rank 1" in alerts
    assert "its GPU runs at 1410 MHz" in alerts


@pytest.mark.long
def test_no_color(
    snap_compare: Compare, demo: Callable[[], TopApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(demo(), terminal_size=(80, 24), run_before=pressing("j"))


@pytest.mark.long
def test_colour_blind_theme(snap_compare: Compare, demo: Callable[[], TopApp]) -> None:
    app = demo()
    app.theme = "clusterctl-blue-orange"
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing(*CURSOR_ON_ODD))


def picture(app: TopApp, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    async def take() -> str:
        async with app.run_test(size=size) as pilot:
            await pressing(*keys)(pilot)
            return app.export_screenshot(title="clusterctl top")

    return re.sub(r"terminal-\d+-", "terminal-", asyncio.run(take()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "height", "keys"),
    [
        ("cluster", 34, CURSOR_ON_ODD),
        ("run", 34, ("3",)),
        ("node", 34, (*CURSOR_ON_ODD, "enter")),
        ("alerts", 20, ("4",)),
        ("stacks", 22, ("5", "enter")),
        ("demo", 34, ()),
    ],
)
def test_pictures_of_the_readme_are_those_of_this_version(
    name: str, height: int, keys: tuple[str, ...], demo: Callable[[], TopApp], request: Any
) -> None:
    app = TopApp(cpu_cluster(NOW)) if name == "demo" else demo()
    taken = picture(app, (110, height), keys)
    path = PICTURES / f"{name}.svg"
    if request.config.getoption("update_snapshots", default=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(taken)
    assert path.read_text() == taken, "check it, then: pytest --snapshot-update"
