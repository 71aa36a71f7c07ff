"""What a server says while it works: the line on a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.output import Output
from clusterctl.serve import events as module
from clusterctl.serve.presets import LOSS
from clusterctl.serve.wanted import Sealed
from clusterctl.serve.work import DONE, OPEN, Folder, LossFolder, Unit


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    terminal = SimpleNamespace(is_on=True, show=lines.append, clear=lambda: None)
    monkeypatch.setattr(module, "Live", lambda enabled: terminal)
    monkeypatch.setattr(module, "PROGRESS_S", 0.0)
    return lines


def test_the_line_says_what_is_being_done(shown: list[str], tmp_path: Path) -> None:
    source: Any = SimpleNamespace(name="007-run", folder=tmp_path)
    events, sealed = module.Events(Output()), Sealed("epoch0-global_step10", 1.0, "stamp")
    videos = Folder(source, sealed, LOSS, ("a cat", "a dog"), "ema", {})
    losses = LossFolder(source, sealed)
    events.progress([videos, losses], 0)
    events.progress([videos, losses], 1)
    videos.state, videos.units = OPEN, [Unit(1, 2, ["a_dog.mp4"])]
    events.progress([videos, losses], 1)
    videos.state, losses.state = DONE, OPEN
    events.progress([videos, losses], 1)
    losses.state = DONE
    events.progress([videos, losses], 1)
    assert shown == [
        "waiting for a sampler",
        "looking at checkpoints",
        "007-run epoch0-global_step10 validation: 1 of 2 videos",
        "007-run epoch0-global_step10 validation: measuring",
        "all is made; waiting for checkpoints",
    ]


@pytest.mark.long
def test_a_node_that_flaps_or_lies_gets_a_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end has another text, as a hostile node would give it: log and memory stay small."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    events = module.Events(Output())
    for number in range(20_000):
        now[0] += 0.01  # 200 s in all
        events.node_up("evil", "down")
        events.ready("evil", number % 2, f"cpu {number}")
        events.sampler_ended("evil", number % 2, f"why {number}")
        events.node_down("evil", f"because {number}")
        events.warning(f"text {number}") if number < 10 else None
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if "it is started again" in line]) == 2 * 4
    assert len([line for line in said if "is not used now" in line]) == 4
    assert len([line for line in said if "is back" in line]) == 4
    events.node_up("evil", "down")
    for number in range(20_000):
        events.warning(f"text {number}")
    assert len(events._said) <= module.MOST_SAID


def test_what_a_link_leads_to_is_not_taken_for_a_video(tmp_path: Path) -> None:
    run = tmp_path / "007-run"
    source: Any = SimpleNamespace(name="007-run", folder=run)
    folder = Folder(source, Sealed("epoch0-global_step10", 1.0, "s"), LOSS, ("a cat",), "ema", {})
    folder.path.mkdir(parents=True)
    (tmp_path / "elsewhere.mp4").write_bytes(b"of somebody")
    made, link = folder.path / "a_cat.mp4", folder.path / "a_dog.mp4"
    made.write_bytes(b"video")
    link.symlink_to(tmp_path / "elsewhere.mp4")
    assert [folder.is_made(path.name) for path in (made, link)] == [True, False]
    folder.path.rename(tmp_path / "away")
    folder.path.symlink_to(tmp_path / "away")
    assert not folder.is_made(made.name)
