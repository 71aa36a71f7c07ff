"""`clusterctl logs`: what it shows, follows and refuses, on real files of run directories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from clusterctl.cli import run as command
from tests.clusterctl.runs.attempts_of import Attempts, three_attempts
from tests.dashboards.runs import journal, unreadable, write_run

NOBODY = 65534
WAIT_S = 60.0  # a deadline for a busy machine


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of three attempts on two nodes of two ranks, below outputs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    path = three_attempts().write(tmp_path / "outputs" / "003-STDiT3-XL-2")
    (path / "ranks").mkdir()
    for rank in range(4):
        parts = [f"{rank}: attempt {number}, line {line}\n" for number in (1, 2, 3) for line in range(30)]  # fmt: skip
        parts[30:30], parts[61:61] = ["--- attempt 2 ---\n"], ["--- attempt 3 ---\n"]
        (path / "ranks" / f"{rank}.log").write_text("".join(parts))
    (path / "ranks" / "starter-n1.log").write_text("starter of n1\n")
    return path


def shown(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    assert command(["logs", *words]) == code
    return capsys.readouterr().out.splitlines()


def test_last_lines_of_every_rank_behind_its_number(run_dir: Path, capsys) -> None:
    lines = shown(capsys)
    assert len(lines) == 4 * 20
    assert lines[:2] == ["0 | 0: attempt 3, line 10", "0 | 0: attempt 3, line 11"]
    assert lines[-1] == "3 | 3: attempt 3, line 29"
    assert shown(capsys, "3", "--rank", "1,3", "--tail", "1") == ["1 | 1: attempt 3, line 29", "3 | 3: attempt 3, line 29"]  # fmt: skip
    assert len(shown(capsys, "003-STDiT3-XL-2", "--rank", "2", "--tail", "all")) == 92


def test_one_attempt(run_dir: Path, capsys) -> None:
    lines = shown(capsys, "--attempt", "2")
    assert len(lines) == 4 * 30
    assert all("attempt 2" in line for line in lines)
    assert shown(capsys, "--attempt", "1", "--rank", "0", "--tail", "2") == ["0 | 0: attempt 1, line 28", "0 | 0: attempt 1, line 29"]  # fmt: skip
    assert command(["logs", "--attempt", "4"]) == 2
    assert "its attempts are 1 to 3" in capsys.readouterr().err


def test_ranks_of_a_node_and_what_started_them(run_dir: Path, capsys) -> None:
    assert shown(capsys, "--node", "n1", "--tail", "1") == ["0 | 0: attempt 3, line 29", "1 | 1: attempt 3, line 29", "n1 | starter of n1"]  # fmt: skip
    # The launcher wrote where ranks were in attempt 3.
    for rank in (2, 3):
        journal(run_dir, "rank", f"rank {rank} is pid 17", 1.0, node="n3")
    assert [line[0] for line in shown(capsys, "--node", "n3", "--tail", "1")] == ["2", "3"]
    assert [line[0] for line in shown(capsys, "--node", "n[2-3]", "--rank", "3", "--tail", "1")] == ["3"]  # fmt: skip
    assert command(["logs", "--node", "n7"]) == 2
    assert "had no rank on n7" in capsys.readouterr().err


def test_json_is_a_document_a_line(run_dir: Path, capsys) -> None:
    lines = [json.loads(line) for line in shown(capsys, "--json", "--tail", "1", "--node", "n1")]
    assert [(one["schema"], one["rank"], one["node"], one["text"]) for one in lines] == [
        (1, 0, "n1", "0: attempt 3, line 29"),
        (1, 1, "n1", "1: attempt 3, line 29"),
        (1, None, "n1", "starter of n1"),
    ]


def test_controls_and_secrets_of_a_log_reach_no_terminal(run_dir: Path, capsys) -> None:
    evil = (
        "\x1b]0;title\x07 \x1b[31mred\x1b[0m \r50% \u202e WANDB_API_KEY=sesame https://me:pw@host\n"
    )
    (run_dir / "ranks" / "0.log").write_text(evil)
    (line,) = shown(capsys, "--rank", "0")
    assert line == r"0 | \x1b]0;title\x07 red \r50% \u202e WANDB_API_KEY=*** https://***@host"
    (run_dir / "ranks" / "0.log").write_bytes(b"\xff\xfe no text\n")
    assert shown(capsys, "--rank", "0") == [r"0 | \xff\xfe no text"]


def test_each_rank_has_its_colour(run_dir: Path, capsys) -> None:
    first, second = shown(capsys, "--color", "always", "--rank", "0,1", "--tail", "1")
    assert first == "\x1b[36m0 | \x1b[0m0: attempt 3, line 29"
    assert second.startswith("\x1b[33m1 | ")


def test_links_pipes_and_files_of_others_are_not_read(run_dir: Path, tmp_path: Path, capsys) -> None:  # fmt: skip
    secret = tmp_path / "secret"
    secret.write_text("of somebody else\n")
    ranks = run_dir / "ranks"
    (ranks / "0.log").unlink()
    (ranks / "0.log").symlink_to(secret)
    (ranks / "1.log").unlink()
    os.mkfifo(ranks / "1.log")
    if os.getuid() == 0:
        os.chown(ranks / "2.log", NOBODY, NOBODY)
    assert command(["logs", "--tail", "1"]) == 3
    out, err = capsys.readouterr()
    assert "somebody" not in out
    assert out.splitlines()[-1] == "3 | 3: attempt 3, line 29"
    assert "0.log: it is a link: links are not followed" in err
    assert "1.log: it is a pipe, no plain file" in err
    if os.getuid() == 0:
        assert f"2.log: it belongs to user {NOBODY}" in err
    ranks.rename(tmp_path / "elsewhere")
    ranks.symlink_to(tmp_path / "elsewhere")
    assert command(["logs"]) == 3
    assert "is a link or no folder" in capsys.readouterr().err


def test_run_or_log_that_is_not_there_is_said(run_dir: Path, capsys) -> None:
    assert command(["logs", "4"]) == 2
    assert "hint: the newest is 003-STDiT3-XL-2; clusterctl runs lists" in capsys.readouterr().err
    assert command(["logs", "003-STDiT3-XL"]) == 2
    assert "did you mean 003-STDiT3-XL-2?" in capsys.readouterr().err
    assert command(["logs", "--rank", "7"]) == 3
    assert command(["logs", "--rank", "0,7"]) == 3
    assert "no log of rank 7" in capsys.readouterr().err
    for wrong in (["--rank", "x"], ["--rank", "5-2"], ["--rank", "0-99999999"], ["--since", "later"], ["--tail", "-1"]):  # fmt: skip
        assert command(["logs", *wrong]) == 2
    (run_dir.parent / "003-other").mkdir()
    assert command(["logs", "3"]) == 2
    assert "two runs have the number 3" in capsys.readouterr().err


@pytest.mark.long
def test_192_logs_of_100_mb_open_within_a_second(tmp_path: Path) -> None:
    """Read from the end. The files have holes, so reading one whole would cost time, not space."""
    run_dir = write_run(tmp_path / "001-large", steps=5)
    (run_dir / "ranks").mkdir()
    for rank in range(192):
        with (run_dir / "ranks" / f"{rank}.log").open("wb") as file:
            file.seek(100 << 20)
            file.write(b"\n" + b"".join(b"line %d\n" % line for line in range(50)))
    words = [sys.executable, "-m", "clusterctl", "logs", str(run_dir), "--tail", "3"]
    own_s = cpu_s([sys.executable, "-m", "clusterctl", "logs", "--help"])
    took_s = cpu_s(words)
    assert took_s - own_s < 1.0


def cpu_s(words: list[str]) -> float:
    before = os.times()
    done = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=True)
    after = os.times()
    assert done.stdout
    return after.children_user + after.children_system - before.children_user - before.children_system  # fmt: skip


# --- since ---


def stamped(path: Path, at_s: float) -> None:
    os.utime(path, (at_s, at_s))


def test_since_shows_what_is_known_by_attempts_steps_and_the_last_write(tmp_path: Path, capsys) -> None:  # fmt: skip
    run = Attempts()
    run.attempt()
    run.train(100)
    run.incident("signal-9")
    failed_s = run.at_s
    run.restart(wait_s=600.0)
    again_s = run.at_s
    run.attempt(after=80)
    run.train(100)
    path = run.write(tmp_path / "001-x")
    ranks = path / "ranks"
    ranks.mkdir()
    first = "".join(f"step {n}/1000  epoch 0\nnote {n}\n" for n in range(10, 101, 10))
    second = "".join(f"step {n}/1000  epoch 0\nnote {n}\n" for n in range(90, 181, 10))
    (ranks / "0.log").write_text(f"{first}--- attempt 2 ---\n{second}")
    (ranks / "1.log").write_text("old\n--- attempt 2 ---\nnew\n")
    (ranks / "2.log").write_text("quiet since long ago\n")
    for rank, at_s in ((0, run.at_s), (1, run.at_s), (2, failed_s - 50)):
        stamped(ranks / f"{rank}.log", at_s)

    def since(at_s: float, rank: int, code: int = 0) -> list[str]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
        lines = shown(capsys, str(path), "--since", when, "--rank", str(rank), code=code)
        return [line.partition(" | ")[2] for line in lines]

    assert since(again_s - 300, 1) == ["--- attempt 2 ---", "new"]
    assert since(run.at_s - 3000, 1) == ["old", "--- attempt 2 ---", "new"]
    assert since(failed_s, 2) == []
    # Rank 0 tells of every tenth step: the places are known within 10 s.
    assert since(run.at_s - 25, 0)[0] == "note 150"
    assert since(failed_s - 5 - 15, 0)[0] == "note 80"
    assert since(run.at_s - 50, 1, code=2) == []


def test_since_that_cannot_be_known_is_one_sentence(run_dir: Path, capsys) -> None:
    assert command(["logs", "--since", "10m"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no timestamps in the log of rank 0 and 3 other logs: --since" in err


def test_since_of_a_run_whose_begin_is_not_known_claims_nothing(tmp_path: Path, capsys) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=5)
    (run_dir / "ranks").mkdir()
    (run_dir / "ranks" / "1.log").write_text("when was this?\n")
    # The launcher's first event is known; a launcher of 0.2 wrote no attempts.
    assert shown(capsys, str(run_dir), "--since", "2020-01-01") == ["1 | when was this?"]
    (run_dir / "events.jsonl").unlink()
    assert shown(capsys, str(run_dir), "--since", "2020-01-01", code=2) == []


# --- follow ---


class Following:
    """`clusterctl logs -f` as a process, and its lines as they come."""

    def __init__(self, *words: str) -> None:
        line = [sys.executable, "-m", "clusterctl", "logs", "-f", *words]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)  # fmt: skip
        assert self.process.stdout is not None
        self._out: IO[str] = self.process.stdout

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out


@pytest.fixture
def follow(run_dir: Path) -> Iterator[type[Following]]:
    found: list[Following] = []

    class Kept(Following):
        def __init__(self, *words: str) -> None:
            super().__init__(str(run_dir), *words)
            found.append(self)

    yield Kept
    for one in found:
        one.process.kill()
        one.process.communicate()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_shows_new_lines_new_files_and_ends_with_the_run(run_dir: Path, follow) -> None:
    ranks = run_dir / "ranks"
    append(ranks / "0.log", "half a li")
    logs = follow("--tail", "1")
    assert [logs.line() for _ in range(4)][-1] == "3 | 3: attempt 3, line 29"
    append(ranks / "0.log", "ne\n")
    assert logs.line() == "0 | half a line"
    (ranks / "12.log").write_text("of a new rank\n")
    assert logs.line() == "12 | of a new rank"
    append(ranks / "2.log", "no end")
    journal(run_dir, "end", "all ranks have ended well", time.time(), data={"exit_code": 0})
    assert logs.end() == (0, "2 | no end\n")


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_goes_on_behind_a_log_that_is_emptied_or_replaced(run_dir: Path, follow) -> None:
    log = run_dir / "ranks" / "1.log"
    logs = follow("--rank", "1", "--tail", "1")
    assert logs.line() == "1 | 1: attempt 3, line 29"
    log.write_text("after it was emptied\n")
    assert logs.line() == "1 | after it was emptied"
    (log.parent / "new").write_text("in place of it, and longer than what was in the file before\n")
    (log.parent / "new").rename(log)
    assert logs.line().startswith("1 | in place of it")
    log.unlink()
    log.with_name("0.log").unlink()
    append(log.with_name("1.log"), "there again\n")
    assert logs.line() == "1 | there again"


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_reads_on_when_what_could_not_be_read_can_be(run_dir: Path, follow) -> None:
    """A shared folder fails for minutes; each file that is a folder here is one that fails there."""
    log, events = run_dir / "ranks" / "1.log", run_dir / "events.jsonl"
    logs = follow("--rank", "1", "--tail", "1")
    assert logs.line() == "1 | 1: attempt 3, line 29"
    with unreadable(log):
        assert logs.process.stderr is not None
        assert logs.process.stderr.readline() == f"not read: {log}: it is a folder, no plain file\n"
    append(log, "as before\n")
    assert logs.line() == "1 | as before"
    with unreadable(events):
        append(log, "while the journal cannot be read\n")
        assert logs.line() == "1 | while the journal cannot be read"
    append(log, "as before\n")
    assert logs.line() == "1 | as before"
    journal(run_dir, "end", "", time.time(), data={"exit_code": 0})
    assert logs.end() == (0, "")


def test_logs_without_the_launchers_journal_say_so(run_dir: Path, capsys) -> None:
    events = run_dir / "events.jsonl"
    events.unlink()
    events.mkdir()
    assert command(["logs", "--rank", "1", "--tail", "1"]) == 3
    found = capsys.readouterr()
    assert found.out == "1 | 1: attempt 3, line 29\n"
    assert (
        found.err
        == "not read: outputs/003-STDiT3-XL-2/events.jsonl: it is a folder, no plain file\n"
    )


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_ends_with_ctrl_c_and_with_its_reader(run_dir: Path, follow) -> None:
    logs = follow("--rank", "0", "--tail", "1")
    assert logs.line() == "0 | 0: attempt 3, line 29"
    logs.process.send_signal(signal.SIGINT)
    _, err = logs.process.communicate(timeout=WAIT_S)
    assert (logs.process.returncode, err.strip()) == (130, "interrupted")
    gone = follow("--rank", "0", "--tail", "1")
    gone.line()
    gone._out.close()
    append(run_dir / "ranks" / "0.log", "nobody reads this\n")
    gone.process.wait(WAIT_S)
    assert gone.process.returncode == 141


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_of_an_attempt_stops_where_the_next_one_begins(run_dir: Path, follow) -> None:
    logs = follow("--rank", "0", "--attempt", "3", "--tail", "1")
    assert logs.line() == "0 | 0: attempt 3, line 29"
    append(run_dir / "ranks" / "0.log", "still 3\n--- attempt 4 ---\nfourth\n")
    assert logs.line() == "0 | still 3"
    journal(run_dir, "end", "", time.time(), data={"exit_code": 0})
    assert logs.end() == (0, "")


@pytest.mark.long
@pytest.mark.timeout(2 * WAIT_S)
def test_follow_waits_for_a_run_that_has_no_logs_yet(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-young", steps=1)
    logs = Following(str(run_dir))
    (run_dir / "ranks").mkdir()
    append(run_dir / "ranks" / "0.log", "hello\n")
    assert logs.line() == "0 | hello"
    journal(run_dir, "end", "", time.time(), data={"exit_code": 0})
    assert logs.end() == (0, "")


def test_run_that_is_over_is_not_waited_for(run_dir: Path, capsys) -> None:
    journal(run_dir, "end", "", time.time(), data={"exit_code": 0})
    assert len(shown(capsys, "-f", "--rank", "0", "--tail", "2")) == 2
