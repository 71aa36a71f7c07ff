"""A verb killed at any point: nothing half under the final name, and the same bytes in the end."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.data.tables import write_table
from trainer.data import digits
from trainer.data.__main__ import main
from trainer.data.manifest import resumable_write as job
from trainer.data.manifest.manifest import ManifestError

ROOT = Path(__file__).parents[4]


def killed_at_every_point(tmp_path: Path, *words: str) -> tuple[int, int]:
    """Numbers of kills: each followed by a whole run, and one after the other."""
    write_table(tmp_path / "a.csv", 100, copies=20)
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.data.killed", "50", *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone, together = done.stdout.split()
    return int(alone), int(together)


def test_kill_at_any_point_gives_the_same_bytes_in_the_end(tmp_path):
    alone, together = killed_at_every_point(
        tmp_path, "filter", "a.csv", "o.parquet", "--min-frames=50"
    )
    assert alone >= 16  # 2 pieces, 2 renames each, the whole, its folder
    assert together >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["convert", "a.csv", "o.csv"],
        ["dedupe", "a.csv", "o.csv"],
        ["difference", "a.csv", "a.csv", "o.parquet"],
        ["shard", "a.csv", "o.shards", "--rows=30"],
        ["merge", "a.csv", "a.csv", "o.csv"],
    ],
)
def test_kill_at_any_point_of_every_verb(tmp_path, words):
    killed_at_every_point(tmp_path, *words)


def test_killed_probe_leaves_no_process_and_asks_only_for_the_rest(tmp_path):
    made = tmp_path / "set"
    digits.make(made, clips=80, seed=1)
    want = tmp_path / "want.csv"
    assert main(["probe", str(made / digits.MANIFEST), str(want), "--workers", "1", "-q"]) == 0

    out = tmp_path / "out.csv"
    code = (
        "import sys; from trainer.data.manifest import resumable_write as job; from trainer.data.__main__ import main\n"
        "job.PIECE_S = 0.0; sys.exit(main(sys.argv[1:]))"
    )
    # A clip behind the first 64 gets no answer: the verb waits there until it is killed.
    rows = (made / digits.MANIFEST).read_text().splitlines()
    source = made / digits.MANIFEST
    hold = (
        "import time\nfrom trainer.data.tools import file_probe as examine\n"
        "real = examine.Examiner.ask\n"
        "def ask(self, question):\n"
        "    if question['path'].endswith(LATE):\n"
        "        time.sleep(600)\n"
        "    return real(self, question)\n"
        "examine.Examiner.ask = ask\n"
    )
    late = rows[70].split(",")[0]
    process = subprocess.Popen(
        [sys.executable, "-c", f"LATE = {late!r}\n{hold}\n{code}",
         "probe", str(source), str(out), "--workers", "1", "-q"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        state = tmp_path / ".out.csv.work" / "state.json"
        wait_for(lambda: state.exists() and json.loads(state.read_text())["rows"] == 64)
        children = children_of(process.pid)
        assert children
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert not out.exists()

    asked = []
    import trainer.data.tools.file_probe as examine

    real = examine.LocalPool.ask
    examine.LocalPool.ask = lambda self, question: asked.append(question) or real(self, question)
    try:
        assert main(["probe", str(source), str(out), "--workers", "1", "-q"]) == 0
    finally:
        examine.LocalPool.ask = real
    assert len(asked) == 16
    assert out.read_bytes() == want.read_bytes()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task").glob("*/children") for child in child.read_text().split()]  # fmt: skip


def test_other_arguments_or_another_source_begin_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "PIECE_ROWS", 40)
    source = write_table(tmp_path / "a.csv", 100)
    out = tmp_path / "o.csv"
    (tmp_path / "bad.csv").write_text(source.read_text() + "too,short\n")
    bad = ["convert", str(tmp_path / "bad.csv"), str(out), "-q", "--max-wrong-rows"]
    assert main([*bad, "0"]) == 2
    assert not out.exists()
    assert (tmp_path / ".o.csv.work" / "state.json").exists()
    # a higher limit is the same job and goes on; another source is not
    assert main(["convert", str(source), str(out), "-q"]) == 0
    assert out.read_bytes() == source.read_bytes()
    out.unlink()
    assert main([*bad, "0"]) == 2
    assert main([*bad, "1"]) == 1
    assert out.read_bytes() == source.read_bytes()


def test_full_disk_is_told_and_what_is_done_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "PIECE_ROWS", 40)
    monkeypatch.setattr("trainer.data.manifest.pipeline.READ_ROWS", 40)
    source = write_table(tmp_path / "a.csv", 100)
    out = tmp_path / "o.csv"
    real = job.CsvFormat.write_piece

    def full(self, path, batches):
        if path.name.startswith("00000001"):
            path.write_text("half a pie")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(self, path, batches)

    monkeypatch.setattr(job.CsvFormat, "write_piece", full)
    assert main(["convert", str(source), str(out), "-q"]) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "what is done is kept" in said
    assert not out.exists()
    monkeypatch.setattr(job.CsvFormat, "write_piece", real)
    assert main(["convert", str(source), str(out)]) == 0
    assert "rows are done already" in capsys.readouterr().err
    assert out.read_bytes() == source.read_bytes()


def test_lost_piece_or_damaged_state_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "PIECE_ROWS", 40)
    source = write_table(tmp_path / "a.csv", 100)
    source.write_bytes(source.read_bytes() + b"too,short\r\n")
    out, work = tmp_path / "o.csv", tmp_path / ".o.csv.work"
    words = ["convert", str(source), str(out), "-q", "--max-wrong-rows"]
    for damage in (
        lambda: (work / "00000000.csv").unlink(),
        lambda: (work / "state.json").write_text('{"pieces": 3'),
        lambda: (work / "state.json").write_text("[]"),
    ):
        assert main([*words, "0"]) == 2
        damage()
        assert main([*words, "1"]) == 1
        assert out.read_bytes() + b"too,short\r\n" == source.read_bytes()
        assert not work.exists()
        out.unlink()


def test_two_processes_do_not_make_one_file(tmp_path):
    with (
        job.Job(tmp_path / "o.csv", {}),
        pytest.raises(ManifestError, match="another process"),
        job.Job(tmp_path / "o.csv", {}),
    ):
        pass


def test_what_is_there_is_replaced_only_when_told_to(tmp_path, capsys):
    source = write_table(tmp_path / "a.csv", 5)
    out = tmp_path / "o.csv"
    out.write_text("mine")
    assert main(["convert", str(source), str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["convert", str(source), str(out), "--force"]) == 0
    assert out.read_bytes() == source.read_bytes()
    assert main(["convert", str(source), str(source), "--force"]) == 2
    assert "cannot be written at the same time" in capsys.readouterr().err


def test_interrupt_says_how_to_go_on_and_ends_at_once(tmp_path):
    """Ctrl-C in a terminal reaches every process of the group."""
    made = tmp_path / "set"
    digits.make(made, clips=8, seed=1)
    os.mkfifo(made / "ready")
    code = (
        "import sys, time, trainer.data.tools.probe as probe; from trainer.data.__main__ import main\n"
        "def slow(futures):\n"
        f"    open({str(made / 'ready')!r}, 'w').close()\n"
        "    while True: time.sleep(0.05)  # one long sleep misses a signal that comes just before it\n"
        "probe.answers = slow; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "probe", str(made / digits.MANIFEST), str(tmp_path / "o.csv")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        (made / "ready").read_text()  # blocks until it is there
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130
    assert said.strip().splitlines()[-1].startswith("interrupted; the same command goes on")
    assert "Traceback" not in said
    assert not (tmp_path / "o.csv").exists()
