"""What `status` says of a run by its files alone; of one that goes on see test_attach.py."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli import run
from clusterctl.launch.head import status
from clusterctl.runs import step_lines
from clusterctl.why import recorded
from tests.clusterctl.runs.attempts_of import three_attempts
from tests.dashboards.runs import BEGAN, record, write_run
from trainer.runlog import steps
from trainer.runlog.own_modules import module_command
from trainer.runlog.telemetry import FILE, Event, StepRecord, Writer, encode

FAILED = "the checkpoint could not be written: rank 0: it needs 12.4 GB"


def tell(run_dir: Path, *events: Event) -> None:
    writer = Writer(run_dir)
    for event in events:
        writer.write(event)
    writer.close()


def test_last_checkpoint_is_shown_and_that_no_save_has_succeeded_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=20)

    def status() -> tuple[str, dict[str, object]]:
        assert run(["status", str(run_dir)]) == 3  # it is unknown how it ended
        lines = capsys.readouterr().out
        assert run(["status", str(run_dir), "--json"]) == 3
        return lines, json.loads(capsys.readouterr().out)

    lines, found = status()
    assert "checkpoint of" not in lines
    step = found["step"]
    assert isinstance(step, dict)
    assert step["step"] == 20
    assert f"\nstep       20 of {step['steps_total']}, loss {step['loss']:.4f}" in lines
    assert (found["checkpoint"], found["save_failed"]) == (None, None)
    then = time.time() - 600
    saved = Event("checkpoint", "in 2 s", {"path": "/x/001-x/epoch0-global_step10"}, 10, then)
    tell(run_dir, Event("save-failed", "earlier", step=5, time_s=then), saved)
    lines, found = status()
    assert "\ncheckpoint of step 10, 10 min 0" in lines
    assert "NOT SAVED" not in lines
    assert found["checkpoint"] == {"name": "epoch0-global_step10", "step": 10, "time_s": then}
    tell(run_dir, Event("save-failed", FAILED, {"next": 30}, 20, time.time()))
    lines, found = status()
    assert f"\nNOT SAVED  {FAILED}\n" in lines
    assert found["save_failed"] == FAILED
    assert found["checkpoint"] is not None


def test_run_that_has_ended_says_how_long_it_took_and_its_sentence_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=20)
    text = "rank 0 on n1: outputs/001-x of rank 0 cannot be seen by 2 of 3 ranks"
    begin = {"attempt": 1, "nodes": ["n1"], "spares": [], "excluded": [], "world_size": 1}
    lines = [
        {"event": "attempt", "text": "attempt 1 on n1", "time_s": 1000.0, "data": begin},
        {"event": "end", "text": text, "time_s": 1095.0, "data": {"exit_code": 1}},
    ]
    (run_dir / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    found = {"incident": "exit", "class": "refused", "text": text, "time_s": 1090.0, "attempt": 1}
    earlier = {**found, "text": "rank 1 on n1: signal 9", "time_s": 1050.0}
    (run_dir / "incidents.jsonl").write_text(f"{json.dumps(earlier)}\n{json.dumps(found)}\n")
    assert run(["status", str(run_dir)]) == 1
    out = capsys.readouterr().out
    assert out.count(text) == 1
    assert "incident   rank 1 on n1: signal 9" in out
    assert "1 min 35 s in all" in out
    assert run(["status", str(run_dir), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["seconds"] == 95.0


def test_end_of_a_long_run_is_enough_and_it_says_since_when_it_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month has 500,000 steps and more: reading all of them took 20 s."""
    made = three_attempts()
    saved = Event("checkpoint", "in 2 s", {"path": "/x/epoch0-global_step10"}, 10, 1.0)
    made.telemetry.insert(3, saved)
    run_dir = made.write(tmp_path / "run")

    def facts() -> dict[str, Any]:
        assert run(["status", str(run_dir), "--json"]) == 3
        return dict(json.loads(capsys.readouterr().out))

    whole = facts()
    assert whole["counted_from_s"] is None
    assert set(whole["lost_s"]) == {"signal-9", "hang-data"}
    first = made.telemetry[-120]  # a step of the second attempt: its hang is behind it
    tail = sum(len(encode(one)) + 1 for one in made.telemetry[-120:])
    monkeypatch.setattr(status, "LAST_BYTES", tail)
    lines = (run_dir / FILE).read_bytes().splitlines(keepends=True)
    (run_dir / FILE).write_bytes(b"x" * 4096 + b"\n" + b"".join(lines))  # never looked at
    found = facts()
    assert first.time_s - 2 < found["counted_from_s"] <= first.time_s
    assert set(found["lost_s"]) == {"hang-data"}
    same = ("attempt", "restarts", "step", "checkpoint")
    assert {name: found[name] for name in same} == {name: whole[name] for name in same}
    assert found["checkpoint"]["step"] == 10  # it was saved before the part that is read
    assert run(["status", str(run_dir)]) == 3
    assert "of the time since 20" in capsys.readouterr().out


def trained(run_dir: Path, *starts: tuple[int, int]) -> list[Event | StepRecord]:
    """Of a trainer that nobody launched: each start takes steps from one number to another."""
    writer, records, now = Writer(run_dir), list[Event | StepRecord](), BEGAN
    for number, (first, last) in enumerate(starts):
        after = None if number == 0 else first - 1
        records.append(Event("start", "", {}, after, now))
        records += [record(step, time_s=now + step - first + 1) for step in range(first, last + 1)]
        records.append(Event("validation", "earlier", {}, last, now + last - first + 2))
        now += last - first + 60
    for one in records:
        writer.write(one)
    writer.close()
    return records


def test_starts_of_a_long_run_without_a_launcher_are_all_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "001-x"
    run_dir.mkdir()
    records = trained(run_dir, (1, 400), (301, 500), (451, 900))

    def facts(command: str) -> dict[str, Any]:
        assert run([command, str(run_dir), "--json"]) == 3
        return dict(json.loads(capsys.readouterr().out))

    whole, why = facts("status"), facts("why")
    decoded: list[bytes] = []
    plain = steps.after_line

    def counting(value: steps.Steps, line: bytes) -> steps.Steps:
        decoded.append(line)
        return plain(value, line)

    monkeypatch.setattr(step_lines, "after_line", counting)
    tail = sum(len(encode(one)) + 1 for one in records[-100:])
    monkeypatch.setattr(status, "LAST_BYTES", tail)
    monkeypatch.setattr(recorded, "STEP_BYTES", tail)
    found = facts("status")
    assert len(decoded) < 120
    same = ("attempt", "restarts", "step", "state")
    assert {name: found[name] for name in same} == {name: whole[name] for name in same}
    assert (found["attempt"], found["restarts"]) == (3, 2)
    assert found["counted_from_s"] == pytest.approx(records[-100].time_s, abs=3)
    assert whole["counted_from_s"] is None
    now = facts("why")
    assert [(one["first_step"], one["last_step"]) for one in now["attempts"]] == [
        (1, 400), (301, 500), (451, 900)
    ]  # fmt: skip
    assert now["attempts"] == why["attempts"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "why"])
def test_a_million_steps_take_seconds_and_little_memory(tmp_path: Path, command: str) -> None:
    run_dir = tmp_path / "001-x"
    run_dir.mkdir()
    trained(run_dir, (1, 1))
    line = encode(record(12_345, time_s=BEGAN)).encode() + b"\n"
    with (run_dir / FILE).open("ab") as file:
        for begin in range(2, 1_000_001, 1000):
            file.writelines(
                line.replace(b'"step":12345,', b'"step":%d,' % step)
                for step in range(begin, begin + 1000)
            )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = module_command("clusterctl", command, str(run_dir), "--json")
    process = subprocess.run(words, capture_output=True, text=True)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 3, process.stderr
    spent_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    assert spent_s < 8.0
    assert now.ru_maxrss < 250_000  # kB
