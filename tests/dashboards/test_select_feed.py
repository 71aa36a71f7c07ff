"""Run directories played as `watch --replay` does: gaps, missing times, and lines that hold anything."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest

from clusterctl.cli import run
from dashboards import select_feed as sources
from dashboards.feeds import run_dir as feeds
from dashboards.model.samples import Tick
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.dashboards.commands.test_watch import json_lines
from tests.dashboards.recording.odd_recordings import ODD
from tests.dashboards.recording.test_odd_recordings import drawn
from tests.dashboards.runs import BEGAN, journal, record, write_run
from trainer.runlog.telemetry import FILE, Writer, encode

DAY_S = 86400.0


def run_with(directory: Path, *times: float) -> Path:
    """A run of 100 steps each from these times on; 0: steps without a time."""
    run_dir = write_run(directory / "001-model", steps=0)
    writer = Writer(run_dir)
    for place, begin_s in enumerate(times):
        for step in range(100 * place + 1, 100 * place + 101):
            writer.write(record(step, time_s=begin_s and begin_s + step * 0.3))
    writer.close()
    return run_dir


@pytest.mark.parametrize("name", ["3", "003-model", "outputs/003-model"])
@pytest.mark.parametrize("command", ["top --once --run", "watch --once --run", "watch --replay"])
def test_a_run_is_named_as_for_every_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    for number in (3, 4):
        write_run(tmp_path / f"outputs/{number:03d}-model", steps=9)
    monkeypatch.chdir(tmp_path)
    found: list[Path] = []
    read = feeds.opened

    def noted(run_dir: Path, at_s: float) -> object:
        found.append(run_dir.resolve())
        return read(run_dir, at_s)

    monkeypatch.setattr(feeds, "opened", noted)
    monkeypatch.setattr(sources, "opened", noted)
    assert run([*command.split(), name]) in (0, 1)  # 1: it stalls
    assert {*found} == {tmp_path / "outputs/003-model"}


def test_a_number_that_no_run_has_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "outputs/004-model", steps=9)
    monkeypatch.chdir(tmp_path)
    assert run(["top", "--run", "3", "--once"]) == 2
    assert "there is no run 3, here or in outputs/" in capsys.readouterr().err


@pytest.mark.long
def test_week_without_a_step_is_one_stall_and_costs_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run_with(tmp_path, BEGAN, BEGAN + 7 * DAY_S)
    begun = time.process_time()
    assert run(["watch", "--replay", str(run_dir), "--json", "--check", "run.stalled"]) == 1
    assert time.process_time() - begun < 20.0
    fire, clear, _ = json_lines(capsys.readouterr().out)
    assert fire["time_s"] - BEGAN == pytest.approx(30 + 63, abs=3)
    assert clear["time_s"] - BEGAN == pytest.approx(7 * DAY_S + 30, abs=20)


def test_steps_without_times_lie_beside_those_that_have_one(tmp_path: Path) -> None:
    run_dir = run_with(tmp_path, 0.0, BEGAN)
    batches = list(sources.replayed(run_dir).batches)
    assert len(batches) < 200
    times = [sample.now_s for batch in batches for sample in batch if isinstance(sample, Tick)]
    assert min(times) > BEGAN - 60
    bare = run_with(tmp_path / "bare", 0.0)  # only the journal knows when that was
    timed = feeds.timed_records(bare)
    assert {source for _, _, source in timed} == {"telemetry", "journal"}
    assert 0 <= timed[-1][0] - timed[0][0] < 60


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that counts while asleep")
def test_clock_of_a_feed_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's two clocks as they are after an hour of sleep: only one of them has counted it."""
    slept_s = [0.0]
    real = time.clock_gettime
    clocks = {time.CLOCK_MONOTONIC: 0.0, time.CLOCK_BOOTTIME: 1.0}
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: real(which) + clocks[which] * slept_s[0]
    )
    clock = feeds.steady_clock()
    before = clock()
    slept_s[0] = 3600.0
    assert clock() - before == pytest.approx(3600.0, abs=5.0)


@pytest.mark.long
def test_plan_and_lines_of_a_run_may_hold_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Odd values in every field of telemetry, journal and plan: left out, never a traceback."""
    chance = random.Random(7)
    run_dir = write_run(tmp_path / "002-model", steps=30)
    lines = (run_dir / FILE).read_text().splitlines()
    with (run_dir / FILE).open("w") as file:
        for line in lines:
            file.write(line + "\n")
            for key in json.loads(line):
                odd = {**json.loads(line), key: chance.choice(ODD)}
                file.write(json.dumps(odd) + "\n")
        file.write('{"kind":"step","seconds":' + 100_000 * "[" + "\n")
        for fields in (
            {"steps_total": 2**53},
            {"loss": 1e308, "lr": -1e308},
            {"flops": 1e308},
            {"tokens": 2**53},
        ):
            file.write(encode(record(40, **fields)) + "\n")
    for odd in ODD:
        journal(run_dir, "checkpoint", "at", BEGAN, step=odd, data=odd)
        journal(run_dir, "failed", odd, BEGAN, node=odd)  # type: ignore[arg-type]
        journal(run_dir, "end", "", odd, data={"exit_code": odd, "step": odd})  # type: ignore[arg-type]
    with (run_dir / feeds.JOURNAL).open("a") as file:
        file.write(100_000 * "[" + "\n")
    plans = [{"nodes": [{"name": odd, "slots": odd}]} for odd in ODD]
    plans += [{"nodes": odd} for odd in ODD]
    for plan in [json.dumps(plan) for plan in plans] + [100_000 * "["]:
        (run_dir / "plan.json").write_text(plan)
        feeds.opened(run_dir, 0.0)
    states = [initial_state((), now_s=0.0)]
    for batch in sources.replayed(run_dir).batches:
        states.append(fold(states[-1], batch))
    asyncio.run(drawn(states[1:]))
    assert run(["watch", "--replay", str(run_dir)]) in (0, 1)
    for format in ([], ["--json"]):
        assert run(["top", "--once", *format, "--replay", str(run_dir)]) in (0, 1)
    capsys.readouterr()
    assert len([one for one in feeds.timed_records(run_dir) if one[2] == "telemetry"]) >= 30
