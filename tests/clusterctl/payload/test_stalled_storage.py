"""The storage of a run hangs: its agent goes on, and says what it could not read."""

from __future__ import annotations

from pathlib import Path

from clusterctl.payload.launch.session import agents_of
from tests.clusterctl.launch.harness import wait_until
from tests.clusterctl.payload.agents import on_the_oldest_too

# A pipe without a writer: to open it takes as long as a file of a server that is away.
STALLED = """
import os, time
os.mkfifo({path!r})
print("stalled", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
{end}
"""


def _program(path: Path, go: Path, end: str = "") -> str:
    return STALLED.format(path=str(path), go=str(go), end=end)


def _answers(pipe: Path, text: str) -> None:
    """The server is back, with what was written meanwhile."""
    away = pipe.with_suffix(".away")
    pipe.rename(away)
    pipe.write_text(text)
    with away.open("w"):  # what was being read fails, and is read anew
        away.unlink()


@on_the_oldest_too
def test_beats_go_on_while_files_stall_and_what_was_written_arrives(agent, tmp_path: Path) -> None:
    one, go = agent(), tmp_path / "go"
    pipe = one.run_dir / "telemetry.jsonl"
    one.start(_program(pipe, go), tmp_path)
    for _ in range(4):
        one.hear("beat")
    _answers(pipe, '{"step": 1}\n')
    found = one.hear("telemetry")
    assert (found["text"], found["at"], found["end"]) == ('{"step": 1}\n', 0, 12)
    go.touch()
    assert one.hear("ended")["code"] == 0
    assert one.hear("gone")["left"] == []


def test_rank_that_ends_meanwhile_is_told_with_its_log_and_the_beats(agent, tmp_path: Path) -> None:
    one, go = agent(), tmp_path / "go"
    pipe = one.run_dir / "telemetry.jsonl"
    one.start(_program(pipe, go, "raise SystemExit('no such clip')"), tmp_path)
    one.hear("beat")
    go.touch()
    assert one.hear("rank_ended")["tail"] == ["stalled", "no such clip"]
    one.hear("beat")  # also while it waits for the rest of the files
    one.hear("beat")
    _answers(pipe, "the last line")
    assert one.hear("telemetry")["text"] == "the last line"
    one.hear("gone")


def test_log_that_cannot_be_read_is_said_in_place_of_its_last_lines(agent, tmp_path: Path) -> None:
    one, go = agent(), tmp_path / "go"
    log = one.run_dir / "ranks" / "0.log"
    swap = f"os.unlink({str(log)!r}); os.mkfifo({str(log)!r}); raise SystemExit(1)"
    one.start(_program(tmp_path / "other", go, swap), tmp_path)
    go.touch()
    assert one.hear("rank_ended")["tail"] == [
        f"[{log} could not be read within 5 s: its storage stalls]"
    ]
    _answers(log, "")
    one.hear("gone")


def test_head_that_comes_back_during_a_stall_gets_all_once(agent, tmp_path: Path) -> None:
    one, go = agent(), tmp_path / "go"
    pipe = one.run_dir / "telemetry.jsonl"
    one.start(_program(pipe, go), tmp_path)
    one.hear("beat")
    one.disconnect()
    one.connect(resume={"seen": 3, "positions": {"telemetry": 0}})
    one.hear("beat")
    _answers(pipe, "first\nlast\n")
    found = one.hear("telemetry")
    assert (found["text"], found["at"], found["end"]) == ("first\nlast\n", 0, 11)
    go.touch()
    one.hear("gone")
    one.send(op="bye")
    wait_until(lambda: not agents_of(one.run_id))
