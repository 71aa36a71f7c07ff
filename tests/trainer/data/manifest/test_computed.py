"""A verb killed at any point: nothing half under the final name, and the same bytes in the end."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.data.killed import Examiner
from tests.trainer.data.tables import write_table
from trainer.data import digits
from trainer.data.__main__ import main
from trainer.data.manifest import computed
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.work_folder import WorkFolder
from trainer.data.tools import file_probe

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


@pytest.mark.long
def test_kill_at_any_point_gives_the_same_bytes_in_the_end(tmp_path):
    alone, together = killed_at_every_point(tmp_path, "probe", "a.csv", "o.csv")
    assert alone >= 15  # 2 flushes, 2 renames each, the result, its folder
    assert together >= 1


@pytest.mark.slow
def test_shards_that_are_killed_leave_nothing_half(tmp_path):
    alone, _ = killed_at_every_point(tmp_path, "shard", "a.csv", "o.shards", "--rows=60", "--force")
    assert alone >= 7


@pytest.mark.slow
def test_verb_that_is_killed_leaves_nothing_half(tmp_path):
    alone, _ = killed_at_every_point(
        tmp_path, "filter", "a.csv", "o.parquet", "--min-frames=50", "--force"
    )
    assert alone >= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["convert", "a.csv", "o.csv", "--force"],
        ["dedupe", "a.csv", "o.csv", "--force"],
        ["difference", "a.csv", "a.csv", "o.parquet", "--force"],
        ["merge", "a.csv", "a.csv", "o.csv", "--force"],
    ],
)
def test_kill_at_any_point_of_every_verb(tmp_path, words):
    killed_at_every_point(tmp_path, *words)


@pytest.mark.long
@pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
def test_full_disk_is_reported_and_leaves_nothing(tmp_path, name):
    """A limit on the size of files fails the write as a full disk does."""
    write_table(tmp_path / "a.csv", 2000)
    code = (
        "import resource, sys; from trainer.data.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "convert", "a.csv", name, "-q"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "nothing was written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.long
def test_interrupted_query_ends_at_once_and_leaves_nothing(tmp_path):
    write_table(tmp_path / "a.csv", 10)
    forever = "(SELECT count(*) FROM range(1000000000) a, range(1000000) b) > num_frames"
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.data", "filter", "a.csv", "o.csv", "--where", forever],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: (tmp_path / ".o.csv.work").exists())
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130, stderr
    assert stderr == "interrupted; nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.long
def test_killed_probe_leaves_no_process_and_asks_only_for_the_rest(tmp_path):
    made = tmp_path / "set"
    digits.make(made, clips=80, seed=1)
    want = tmp_path / "want.csv"
    assert main(["probe", str(made / digits.MANIFEST), str(want), "--workers", "1", "-q"]) == 0

    out = tmp_path / "out.csv"
    code = (
        "import sys; from trainer.data.manifest import computed; from trainer.data.__main__ import main\n"
        "computed.FLUSH_S = 0.0; sys.exit(main(sys.argv[1:]))"
    )
    # A clip behind the first 64 gets no answer: the verb waits there until it is killed.
    rows = (made / digits.MANIFEST).read_text().splitlines()
    source = made / digits.MANIFEST
    hold = (
        "import time\nfrom trainer.data.video.decode import Decoder\n"
        "real = Decoder.ask\n"
        "def ask(self, question):\n"
        "    if question['path'].endswith(LATE):\n"
        "        time.sleep(600)\n"
        "    return real(self, question)\n"
        "Decoder.ask = ask\n"
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


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """`probe good.csv` and, with a wrong row at its end, `bad.csv`; answers are written at 64 rows."""
    monkeypatch.setattr(computed, "FLUSH_ROWS", 40)
    monkeypatch.setattr(file_probe, "LocalPool", lambda *_: Examiner())
    monkeypatch.chdir(tmp_path)
    source = write_table(tmp_path / "good.csv", 100)
    (tmp_path / "bad.csv").write_bytes(source.read_bytes() + b"unreadable.mp4,x,1,1,1,1,1,1,1\r\n")
    assert main(["probe", "good.csv", "want.csv", "-q"]) == 0

    def probe(name: str, *words: str) -> int:
        return main(["probe", name, "out.csv", "-q", *words])

    return probe


@pytest.mark.long
def test_other_arguments_or_another_source_begin_anew(probe, tmp_path):
    out, want = tmp_path / "out.csv", (tmp_path / "want.csv").read_bytes()
    assert probe("bad.csv", "--max-wrong-rows", "0") == 2
    assert not out.exists()
    assert json.loads((tmp_path / ".out.csv.work" / "state.json").read_text())["rows"] == 101
    # a higher limit is the same job and continues; another source is not
    assert probe("good.csv") == 0
    assert out.read_bytes() == want
    out.unlink()
    assert probe("bad.csv", "--max-wrong-rows", "0") == 2
    assert probe("bad.csv", "--max-wrong-rows", "1") == 1
    assert out.read_bytes() == want


@pytest.mark.long
def test_full_disk_is_reported_and_finished_work_is_kept(probe, tmp_path, monkeypatch, capsys):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:  # the answers and the state of 64 rows, then the answers of 100
            raise OSError(errno.ENOSPC, "No space left on device", "answers.csv")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert probe("good.csv") == 2
    stderr = capsys.readouterr().err
    assert "No space left on device" in stderr
    assert "finished work is kept" in stderr
    assert not (tmp_path / "out.csv").exists()
    monkeypatch.setattr(os, "fsync", real)
    assert main(["probe", "good.csv", "out.csv"]) == 0
    assert "64 rows done already" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "want.csv").read_bytes()


@pytest.mark.long
def test_lost_answers_or_damaged_state_begin_anew(probe, tmp_path):
    out, work = tmp_path / "out.csv", tmp_path / ".out.csv.work"
    for damage in (
        lambda: (work / "answers.csv").unlink(),
        lambda: (work / "answers.csv").write_text("a,b"),
        lambda: (work / "state.json").write_text('{"rows": 3'),
        lambda: (work / "state.json").write_text("[]"),
    ):
        assert probe("bad.csv", "--max-wrong-rows", "0") == 2
        damage()
        assert probe("bad.csv", "--max-wrong-rows", "1") == 1
        assert out.read_bytes() == (tmp_path / "want.csv").read_bytes()
        assert not work.exists()
        out.unlink()


def test_two_processes_do_not_make_one_file(tmp_path):
    with (
        WorkFolder(tmp_path / "o.csv", {}),
        pytest.raises(ManifestError, match="another process"),
        WorkFolder(tmp_path / "o.csv", {}),
    ):
        pass


def test_folder_without_locks_is_refused_with_what_to_do(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ManifestError, match="No locks available") as caught:
        WorkFolder(tmp_path / "o.csv", {}).__enter__()
    assert "has locks" in caught.value.hint


def test_what_is_there_is_replaced_only_when_told_to(tmp_path, capsys):
    source = write_table(tmp_path / "a.csv", 5)
    out = tmp_path / "o.csv"
    out.write_text("mine")
    assert main(["convert", str(source), str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["convert", str(source), str(out), "--force"]) == 0
    assert out.read_bytes() == source.read_bytes()
    assert main(["convert", str(source), str(source), "--force"]) == 2
    assert "cannot be written at the same time" in capsys.readouterr().err


@pytest.mark.long
def test_interrupt_says_how_to_go_on_and_ends_at_once(tmp_path):
    """Ctrl-C in a terminal reaches every process of the group."""
    made = tmp_path / "set"
    digits.make(made, clips=8, seed=1)
    os.mkfifo(made / "ready")
    code = (
        "import sys, time, trainer.data.tools.file_probe as probe; from trainer.data.__main__ import main\n"
        "class Late:\n"
        "    def result(self):\n"
        f"        open({str(made / 'ready')!r}, 'w').close()\n"
        "        while True: time.sleep(0.05)  # one long sleep misses a signal just before it\n"
        "probe.LocalPool.ask = lambda *_: Late()\n"
        "sys.exit(main(sys.argv[1:]))"
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
    assert said.strip().splitlines()[-1].startswith("interrupted; run the same command again")
    assert "Traceback" not in said
    assert not (tmp_path / "o.csv").exists()
