"""The main job as a newcomer runs it, and that nothing of it is left however it ends."""

import ctypes
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

STEPS = 6  # enough to train, save, sample and score; not enough to be good at it
MOMENTS = {  # words on stderr after which Ctrl-C comes
    "as it starts": "",
    "when the nodes stand": "nodes ",
    "while ranks start": "preflight ",
    "while ranks train": "start:",  # how training ranks end is tests/trainer/test_train.py's
}

started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def orphans_come_here() -> Iterator[None]:
    """Whatever loses its parent becomes a child of this process, where the test sees it."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    yield
    for child in started:  # a test that failed; its ranks end with it
        child.kill()
    started.clear()
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """Shared by the tests of this file: the data set is rendered once."""
    return tmp_path_factory.mktemp("demo") / "outputs"


class Demo:
    """`clusterctl demo` as a child, with its stderr read line by line."""

    def __init__(self, outputs: Path, scratch: Path, *words: str) -> None:
        self.scratch = scratch
        self.child = subprocess.Popen(
            [sys.executable, "-m", "clusterctl", "demo", "--outputs", str(outputs), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(scratch)}, start_new_session=True,
        )  # fmt: skip
        started.append(self.child)
        self.lines: list[str] = []
        self.ended = False
        self._new = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            with self._new:
                self.lines.append(line.rstrip("\n"))
                self._new.notify_all()
        with self._new:
            self.ended = True
            self._new.notify_all()

    def wait_for(self, words: str, timeout_s: float = 120) -> None:
        with self._new:
            seen = self._new.wait_for(
                lambda: any(words in line for line in self.lines) or self.ended, timeout_s
            )
        assert seen, f"{words!r} not seen in {self.lines}"
        assert not self.ended, f"ended before {words!r}: {self.lines}"

    def end(self, timeout_s: float = 30) -> tuple[int, str]:
        """Exit code and stdout."""
        assert self.child.stdout is not None
        out = self.child.stdout.read() if self.child.wait(timeout_s) is not None else ""
        with self._new:
            assert self._new.wait_for(lambda: self.ended, timeout_s), "somebody holds its stderr"
        return self.child.returncode, out

    def ends_before_it_is_ours(self) -> bool:
        """Whether the interpreter ended while it was starting: with status 1 by Ctrl-C at that time."""
        return any("init_import_site" in line for line in self.lines)


def _left(scratch: Path) -> list[str]:
    """Processes and temporary files that outlived the demo; zombies are reaped on the way."""
    processes = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
            elif "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                processes.append(f"{child.pid} {' '.join(child.cmdline())[:100]}")
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return processes + [str(path) for path in scratch.glob("clusterctl-demo-*")]


def _assert_nothing_left(scratch: Path, before: list[str], deadline_s: float = 3.0) -> None:
    deadline = time.monotonic() + deadline_s
    while left := [one for one in _left(scratch) if one not in before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_demo_trains_samples_and_scores(outputs: Path, tmp_path: Path) -> None:
    before = _left(tmp_path)
    demo = Demo(outputs, tmp_path, "--json", "--steps", str(STEPS))
    demo.wait_for("start:", 200)
    asked = [sys.executable, "-m", "clusterctl", "status", "--json", str(outputs)]
    seen = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert seen.returncode == 0, seen.stderr
    status = json.loads(seen.stdout)
    assert status["state"] == "running"
    assert f"process {demo.child.pid} on" in status["supervisor"]
    code, out = demo.end(timeout_s=280)
    assert code == 1, demo.lines  # six steps do not reach the score, and the demo says so
    document = json.loads(out.splitlines()[-1])
    assert set(document) == {
        "digit_accuracy", "direction_accuracy", "train_seconds", "steps", "run_dir",
        "contact_sheet", "loss_curve", "gallery", "validation",
    }  # fmt: skip
    assert document["steps"] == STEPS
    first, last = document["validation"]
    assert (first["step"], last["step"]) == (0, STEPS)
    assert first["clips"] == last["clips"] == 32
    assert first["model"] == first["ema"] > max(last["model"], last["ema"])
    run_dir = Path(document["run_dir"])
    assert (run_dir / "latest").read_text().strip() == f"epoch0-global_step{STEPS}"
    assert len(list((run_dir / "samples").glob("*.mp4"))) == 40
    for picture in (document["contact_sheet"], document["loss_curve"]):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    assert document["gallery"] == str(run_dir / "samples" / "index.html")
    assert "handwritten digit" in Path(document["gallery"]).read_text()
    for rank in (0, 1):
        assert (run_dir / "ranks" / f"{rank}.log").exists()
    names = [
        json.loads(line)["event"] for line in (run_dir / "events.jsonl").read_text().splitlines()
    ]
    assert names[0] == "attempt"
    assert names[-1] == "end"
    left = {".owner", ".supervisor.json"} & {path.name for path in run_dir.iterdir()}
    assert not left
    _assert_nothing_left(tmp_path, before)


def _wait_for_ranks(before: list[str], timeout_s: float = 60) -> None:
    """Until both ranks are there; they import torch for seconds then."""
    deadline = time.monotonic() + timeout_s
    while sum("trainer.train" in one for one in _left(Path()) if one not in before) < 2:
        assert time.monotonic() < deadline, _left(Path())
        time.sleep(0.05)


# With ranks it takes 13 CPU s each; tests of launch interrupt ranks that import nothing.
@pytest.mark.parametrize(
    "moment",
    [*list(MOMENTS)[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in list(MOMENTS)[2:])],
)
def test_ctrl_c_leaves_nothing(moment: str, outputs: Path, tmp_path: Path) -> None:
    before, words = _left(tmp_path), MOMENTS[moment]
    demo = Demo(outputs, tmp_path, "--steps", "5000")
    if words:
        demo.wait_for(words)
    if moment == "while ranks start":
        _wait_for_ranks(before)
    demo.child.send_signal(signal.SIGINT)
    try:
        code, _ = demo.end()
    except subprocess.TimeoutExpired:
        # An interpreter that starts loses one in a hundred; whoever presses it presses it again.
        assert not words
        demo.child.send_signal(signal.SIGINT)
        code, _ = demo.end()
    # Before the interpreter has its handler the signal itself ends it.
    early = not words and (code == -signal.SIGINT or demo.ends_before_it_is_ours())
    # Nor has it begun with our code where it makes stdin, stdout and stderr.
    early = early or (not words and "Fatal Python error: init_sys_streams" in "".join(demo.lines))
    assert code == 130 or early, (code, demo.lines)
    assert not any("Traceback" in line for line in demo.lines) or not words
    _assert_nothing_left(tmp_path, before)


@pytest.mark.long
def test_programs_of_the_demo_are_started_without_hooks_that_lose_ctrl_c() -> None:
    """KeyboardInterrupt in a hook of a fork is printed and forgotten: up to half of those sent then."""
    from clusterctl import demo

    forks: list[int] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(1))
    assert "usage: " in demo._python("trainer.data.digits", "--help")
    assert forks == []


@pytest.mark.long
def test_demo_that_is_killed_leaves_no_process(outputs: Path, tmp_path: Path) -> None:
    before = _left(tmp_path)
    demo = Demo(outputs, tmp_path, "--steps", "5000")
    demo.wait_for("nodes ")
    demo.child.kill()
    demo.child.wait()
    deadline = time.monotonic() + 15
    while left := [one for one in _left(tmp_path) if one not in before and one[0].isdigit()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_demo_without_training_environment_says_what_to_do(monkeypatch, capsys, tmp_path) -> None:
    from clusterctl import cli, demo

    monkeypatch.setattr(demo, "NEEDS", ("torch", "no_such_module"))
    assert cli.run(["demo", "--outputs", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "no_such_module" in err
    assert "make demo" in err


def test_score_is_shown_before_the_nodes_wait_for_a_second_terminal(
    monkeypatch, capsys, tmp_path
) -> None:
    """What is real in this demo is the order of its words."""
    from clusterctl import cli, demo
    from clusterctl.transport.loopback import nodes

    class Cluster:
        hostfile = tmp_path / "nodes.txt"

        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> "Cluster":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def stop(self) -> None:
            pass

    class Event:
        def wait(self) -> None:
            said = capsys.readouterr()
            assert "digit accuracy      0.95" in said.out
            assert (
                f"in a second terminal: {demo.typed_command()} gpus {Cluster.hostfile}" in said.err
            )
            waited.append(1)
            raise KeyboardInterrupt

    waited: list[int] = []
    scores = '{"digit_accuracy": 0.95, "direction_accuracy": 0.95}'
    monkeypatch.setattr(nodes, "LoopbackCluster", Cluster)
    monkeypatch.setattr(demo, "_train", lambda *_: (tmp_path / "run", 5))
    monkeypatch.setattr(demo, "_python", lambda *_: scores)
    monkeypatch.setattr(demo, "final_points", lambda _: ())
    monkeypatch.setattr(demo, "threading", SimpleNamespace(Event=Event))
    assert cli.run(["demo", "--keep", "--outputs", str(tmp_path)]) == 0
    assert waited == [1]
    assert "digit accuracy" not in capsys.readouterr().out


def test_the_end_shows_scores_and_losses_of_held_out_scans(monkeypatch, capsys) -> None:
    from clusterctl import cli, demo
    from trainer.runlog.validation import Point

    points = [Point(step, 1 / (step + 1), None, 32) for step in range(0, 631, 105)]
    result = demo.DemoResult(
        0.95, 0.5, 70.0, 630, "runs/1", "sheet.png", "curve.png", "page.html", points
    )

    def run_demo(_outputs, _output, show, **_):
        show(result)
        return result

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert cli.run(["demo"]) == 1
    out = capsys.readouterr().out
    assert "digit accuracy      0.95  (chance 0.10)  ok" in out
    assert "direction accuracy  0.50  (chance 0.25)  below " in out
    curve = "1.000 at step 0, 0.003 at step 315, 0.002 at step 630"
    assert f"  validation loss     {curve}\n" in out
    assert "  loss curves         curve.png\n" in out
    assert "demo --keep" in out
    assert cli.run(["demo", "--keep"]) == 1
    shown = capsys.readouterr().out
    assert "demo --keep" not in shown
    bench = f"{demo.typed_python()} -m trainer.bench demo --threads 1 --grad-checkpoint all"
    assert f"  {bench} " in shown
    assert cli.run(["demo", "--json"]) == 1
    last = json.loads(capsys.readouterr().out)["validation"][-1]
    assert last == {"step": 630, "model": 1 / 631, "ema": None, "clips": 32}


def test_the_next_commands_are_those_that_this_shell_finds(monkeypatch, tmp_path) -> None:
    from clusterctl.demo import typed_command, typed_python

    ours = tmp_path / "my env" / "bin" / "clusterctl"
    ours.parent.mkdir(parents=True)
    ours.write_text("#!/bin/sh\n")
    ours.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ours)])
    monkeypatch.setenv("PATH", "/nonexistent")
    assert typed_command() == "'my env/bin/clusterctl'"  # make demo of a bare checkout
    monkeypatch.setenv("PATH", str(ours.parent))
    assert typed_command() == "clusterctl"
    (other := tmp_path / "other").mkdir()
    (other / "clusterctl").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(other))
    assert typed_command() == "'my env/bin/clusterctl'"
    monkeypatch.setattr(sys, "argv", ["/opt/clusterctl/clusterctl/__main__.py"])
    assert typed_command() == "clusterctl"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert typed_command() == f"{shlex.quote(sys.executable)} -m clusterctl"
    monkeypatch.setattr(sys, "executable", str(ours.with_name("python")))
    assert typed_python() == "'my env/bin/python'"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("try_number", range(20))
def test_ctrl_c_at_a_random_moment_leaves_nothing(
    try_number: int, outputs: Path, tmp_path: Path
) -> None:
    before = _left(tmp_path)
    demo = Demo(outputs, tmp_path, "--steps", "40")
    moment_s = random.Random(try_number).uniform(0.0, 60.0)
    try:
        demo.child.wait(moment_s)
    except subprocess.TimeoutExpired:
        demo.child.send_signal(signal.SIGINT)
    code, _ = demo.end(timeout_s=40)
    assert code in (0, 1, 130, -signal.SIGINT), (moment_s, demo.lines)
    _assert_nothing_left(tmp_path, before)


def test_ctrl_c_as_a_step_starts_is_an_interrupt_and_ends_the_step(monkeypatch) -> None:
    from clusterctl import demo

    started: list[subprocess.Popen[str]] = []

    def interrupted(self: subprocess.Popen[str], *_: object) -> None:
        """The interrupt comes before the buffers exist."""
        started.append(self)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "_communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo._python("http.server", "0")
    assert started[0].returncode == -signal.SIGKILL


def test_ctrl_c_as_a_step_ends_is_an_interrupt(monkeypatch) -> None:
    """communicate() waits a moment for the step after an interrupt, and the step may end in it."""
    from clusterctl import demo

    def interrupted(self: subprocess.Popen[str], *_: object) -> None:
        self.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "_communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo._python("platform")
