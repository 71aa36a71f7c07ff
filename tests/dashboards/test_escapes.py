"""Nothing that a node or a run says is obeyed: not by the terminal, not as markup, not as another line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from textual.pilot import Pilot

from clusterctl.cli import run
from dashboards.export.serve import StateCollector, registry_of
from dashboards.model.samples import Disk, EventSample, Gpu, NodeDown, NodeSample, Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.operations.actions import Actions
from dashboards.recording.file_format import Appender
from dashboards.recording.writer import Writer
from dashboards.reduce import fold
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from dashboards.tui.app import TopApp
from tests.dashboards.conftest import NOW
from tests.dashboards.hostile import ESCAPES, hostile, obeyed
from tests.dashboards.runs import FixedFeed
from tests.dashboards.simulated_hour import hour
from trainer.runlog.telemetry import Event

INCIDENTS = (Incident("gpu_lost", 1, 1, 5, 40), Incident("throttle", 2, 1, 5, 40), Incident("node_dead", 3, 0, 10, 40))  # fmt: skip


def rounds() -> Iterator[list[Sample]]:
    """Half a minute of four nodes; all of their texts, and the run's, are hostile."""
    for samples in hour(INCIDENTS, nodes=4, gpus=2, seconds=34):
        said = [hostile(sample) for sample in samples]
        if isinstance(samples[-1], Tick):
            said.insert(-1, EventSample(Event("failure", f"broke {ESCAPES}"), NOW))
        yield said


def state() -> State:
    found = initial_state(names(4), now_s=NOW)
    for samples in rounds():
        found = fold(found, samples)
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "night.rec"
    writer = Writer(Appender(path, 1 << 30), names(4), "hour", 1.0)
    for samples in rounds():
        writer.take(samples[-1].now_s, samples[:-1])  # type: ignore[union-attr]
    writer.close()
    return path


@contextlib.contextmanager
def terminal(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program on a terminal of 160 x 50; gives it and our end of the terminal."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    subprocess.run(["stty", "rows", "50", "cols", "160"], stdin=theirs, check=True)
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        yield child, ours
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(ours)


def read_until(child: subprocess.Popen[bytes], ours: int, words: bytes, deadline_s: float = 60.0) -> bytes:  # fmt: skip
    """All that came until these words stand in it."""
    data, end = b"", time.monotonic() + deadline_s
    while words not in data:
        assert time.monotonic() < end, data[-2000:]
        assert child.poll() is None, data[-2000:]
        select.select([ours], [], [], 0.5)
        with contextlib.suppress(BlockingIOError):
            data += os.read(ours, 1 << 16)
    return data


@pytest.mark.long
def test_real_terminal_is_told_nothing_by_a_node(recording: Path) -> None:
    command = [sys.executable, "-m", "clusterctl", "top", "--replay", str(recording)]
    with terminal(*command) as (child, ours):
        data = read_until(child, ours, b"Stacks")
        os.write(ours, b"\x1b[F")  # the end of the recording
        for key, words in ((b"2", b"driver"), (b"3", b"where a step goes"), (b"4", b"gpu.missing"), (b"5", b"collects the stacks")):  # fmt: skip
            os.write(ours, key)
            data += read_until(child, ours, words)
        os.write(ours, b"q")
        assert child.wait(60) == 0
    text = data.decode("utf-8", "surrogateescape")
    assert obeyed(text) == []
    assert "owned" in text  # it was there to be seen


@pytest.mark.parametrize("command", ["top --once --replay", "watch --replay"])
def test_lines_are_ours_alone(
    recording: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), str(recording)]) == 1
    out, err = capsys.readouterr()
    assert obeyed(out + err) == []
    assert not re.search(r"^FAIL forged", out + err, re.MULTILINE)
    assert "owned" in out


def play(app: TopApp, story) -> None:  # type: ignore[no-untyped-def]
    async def act() -> None:
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await story(pilot)

    asyncio.run(act())


@pytest.mark.long
def test_every_panel_and_title_shows_what_it_cannot_print() -> None:
    app = TopApp(FixedFeed(names(4), [], NOW))
    app.state = state()

    async def story(pilot: Pilot[None]) -> None:
        for mode in ("node", "run", "alerts", "cluster"):
            app.switch_mode(mode)
            await pilot.pause()
            drawn = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
            assert obeyed(drawn) == []
            assert "\x1b" not in drawn

    play(app, story)


@pytest.mark.long
def test_notes_and_the_clipboard_hold_text_and_no_markup() -> None:
    app = TopApp(FixedFeed(names(2), [], NOW))

    async def story(pilot: Pilot[None]) -> None:
        app.screen.notify(f"copied: {ESCAPES}")
        app.notify(ESCAPES, severity="error")
        drawn, end = "", time.monotonic() + 30.0
        while "[/x]" not in drawn:
            assert time.monotonic() < end, drawn
            await pilot.pause()
            drawn = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert obeyed(drawn) == []
        app.copy_to_clipboard("one\n" + ESCAPES)
        assert app.clipboard.startswith("one\n")
        assert "\x1b" not in app.clipboard
        assert "\ud800" not in app.clipboard

    play(app, story)


@pytest.mark.long
def test_palette_shows_names_of_nodes_as_they_are() -> None:
    """The plan of a run is a file, and whoever wrote it named the nodes."""
    app = TopApp(FixedFeed(("n1[/x]",), [], NOW), first="node", actions=Actions())

    async def story(pilot: Pilot[None]) -> None:
        drawn, end = "", time.monotonic() + 30.0
        await pilot.press("ctrl+p")
        while "of the ranks on n1[/x]" not in drawn:
            assert time.monotonic() < end, drawn
            await pilot.pause()
            drawn = "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    play(app, story)


def test_page_of_metrics_stands_whatever_nodes_call_their_parts() -> None:
    """Lone surrogates, escapes, two parts of one name: Prometheus takes a page as a whole or not at all."""
    disks = (Disk("/a\ud800", 1.0, 2.0), Disk("/a\ud800", 3.0, 4.0), Disk(ESCAPES, 1.0, 2.0))
    gpus = (Gpu(0, power_w=1.0), Gpu(0, power_w=2.0))
    found = initial_state(("n1", "n2"), now_s=NOW)
    said = [NodeSample("n1", NOW, disks=disks, gpus=gpus), NodeDown("n2", NOW, "tcp", ESCAPES)]
    found = fold(found, [*said, Tick(NOW)])
    for page in (found, state()):
        text = generate_latest(registry_of(StateCollector(page))).decode("utf-8")
        assert obeyed(text) == []
        samples = [
            (one.name, tuple(sorted(one.labels.items())))
            for family in text_string_to_metric_families(text)
            for one in family.samples
        ]
        assert len(set(samples)) == len(samples)
    assert ("clusterctl_disk_used_bytes", (("node", "n1"), ("path", "/a\\ud800"))) in page_of(found)


def page_of(found: State) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = generate_latest(registry_of(StateCollector(found))).decode("utf-8")
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))) for family in families for one in family.samples}  # fmt: skip
