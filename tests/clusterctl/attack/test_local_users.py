"""The real tool beside another user of the machine who races all that it does.

Needs root, to be two users; nodes are real ssh servers on 127.0.0.1. The default run has one round of
launch, watch, dump-stacks, preflight and kill, the campaign has many.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.files import locks, private
from clusterctl.payload.files import ownership as trust
from tests.clusterctl.commands.user import SHORT, User
from tests.clusterctl.launch.harness import WAIT, ranks_of, tagged, wait_until

NOBODY = 65534
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
ATTACKER = Path(__file__).with_name("attacker.py")
SECRETS = {"WANDB_API_KEY": "wandb-SECRET-01", "MY_PAT": "pat-SECRET-02"}
PROGRAM = "import os\nprint(os.environ['MY_PAT'], os.environ['WANDB_API_KEY'], flush=True)\n"
PROGRAM += WAIT.replace("60", "600")  # longer than a round on a busy machine

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or SYSTEM_PYTHON is None or shutil.which("setpriv") is None,
    reason="needs root, setpriv and a python3 that every user can run, to be another user too",
)


class Attacker:
    """`attacker.py` as nobody, and what it must not change: a file, and processes."""

    def __init__(self, directory: Path, **more: Any) -> None:
        self.victim = directory / "victim"
        self.victim.write_text("precious")
        self.bystanders = [
            subprocess.Popen(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sleep", "600"])
            for user in (0, NOBODY)
        ]  # fmt: skip
        self.asked = {
            "places": ["/tmp", "/dev/shm", "/run", "/var/tmp"],
            "spare": [],
            "guesses": [
                "clusterctl", "clusterctl-0", "clusterctl-0.lock", "clusterctl-beats", "clusterctl-demo-",
                "clusterctl-push-", "clusterctl-watch", "clusterctl-job.lock",
            ],
            "nodes": ["node-1", "node-2"],
            "victim": str(self.victim),
            "words": ["SECRET-0"],
            "pids": [one.pid for one in self.bystanders],
            "ports": [],
            **more,
        }  # fmt: skip
        nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        self.process = subprocess.Popen(
            [*nobody, str(SYSTEM_PYTHON), "-I", "-S", "-c", ATTACKER.read_text()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        self._say(json.dumps(self.asked))
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """What it did and found. Nothing of ours may have been harmed."""
        self._say("")
        out, _ = self.process.communicate(timeout=60)
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert self.victim.read_text() == "precious"
        assert [one.poll() for one in self.bystanders] == [None, None]
        assert report["found"] == []
        return report

    def close(self) -> None:
        if self.process.poll() is None:  # the test has failed: it takes its names back
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=10)
        for one in (self.process, *self.bystanders):
            one.kill()
            one.wait()


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Any]:
    """`attack(**more)` starts one; what it has asked for is in its `asked`."""
    with contextlib.ExitStack() as stack:

        def make(**more: Any) -> Attacker:
            one = Attacker(tmp_path, **more)
            stack.callback(one.close)
            return one

        yield make


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A folder that every user can look into, as a project's usually is."""
    folder = Path(tempfile.mkdtemp(prefix="project-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def clusterctl(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **SECRETS}
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *words],
        capture_output=True, text=True, timeout=120, cwd=workspace, env=env,
    )  # fmt: skip


def one_round(user: User, workspace: Path) -> None:
    """Everything that leaves files or sockets on nodes; each with the result it has undisturbed."""
    shutil.rmtree(user.outputs, ignore_errors=True)
    user.program(PROGRAM)
    hostfile = str(user.cluster.hostfile)
    process = user.start(*SHORT, "--env", "MY_PAT", preexec_fn=lambda: os.umask(0o022), **SECRETS)
    run_id = user.run_id()
    wait_until(lambda: len(ranks_of(run_id)) == 2, 20)
    watched = clusterctl(workspace, "watch", hostfile, "--for", "8s")
    assert "node.down" not in watched.stdout
    assert watched.returncode == 0, watched.stdout + watched.stderr
    dumped = clusterctl(workspace, "dump-stacks", hostfile, "--run", run_id, "--json")
    assert dumped.stdout, dumped.stderr
    assert len(json.loads(dumped.stdout)["nodes"]) == 2
    again = user.type(*SHORT)
    assert again[0] == 1
    assert f"the same job runs already (run {run_id}" in again[2]
    killed = clusterctl(workspace, "kill", hostfile, "--run", run_id, "--yes")
    assert killed.returncode == 0, killed.stdout + killed.stderr
    _, err = process.communicate(timeout=30)
    assert process.returncode in (1, 130), err
    assert tagged(run_id) == []
    open_files = [
        path
        for path in [user.run_dir, *user.run_dir.rglob("*")]
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
    assert open_files == []


def preflight(user: User, workspace: Path) -> dict[str, Any]:
    """What it says of the nodes, without figures that change."""
    done = clusterctl(workspace, "preflight", str(user.cluster.hostfile), "--json")
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return {key: document[key] for key in ("verdict", "exit_code", "nodes", "bad_nodes")}


def play(loopback: Any, attack: Any, workspace: Path, rounds: int) -> None:
    user = User(loopback(2), workspace)
    user.config.write_text("model = dict(type='STDiT3-XL/2')\n")
    try:
        undisturbed = preflight(user, workspace) if rounds > 1 else {}
        attacker = attack(spare=[str(workspace)], ports=list(user.cluster.ports))
        for _ in range(rounds):
            one_round(user, workspace)
        disturbed = preflight(user, workspace)
        assert len(disturbed["nodes"]) == 2
        assert not undisturbed or disturbed == undisturbed
        report = attacker.end()
    finally:
        for process in user.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    print(f"\n{rounds} rounds beside an attacker: {report['turns']} turns, {report['counts']}")
    assert report["counts"]["names"] > 0
    assert report["runs"], "it has learnt no run id from command lines: it was no attack"


@pytest.mark.slow
@pytest.mark.timeout(600)  # 20 s where the machine has nothing else to do
def test_tool_beside_an_attacker(loopback, attack, workspace: Path) -> None:
    play(loopback, attack, workspace, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tool_beside_an_attacker_many_times(loopback, attack, workspace: Path) -> None:
    play(loopback, attack, workspace, 10)


def race_for_the_own_folder(place: Path, attack: Any, rounds: int) -> dict[str, Any]:
    """Make, use and remove our folder and locks in a place like /tmp while another takes their names."""
    name = f"clusterctl-{os.getuid()}"
    attacker = attack(places=[str(place)], guesses=[name], nodes=[])
    lost = 0
    for number in range(rounds):
        try:
            folder = Path(private.own_folder())
        except trust.NotPrivate:
            lost += 1  # it was there first: said, and nothing done
            time.sleep(0.001)
            continue
        found = folder.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o700)
        path = private.lock_path("job", str(number))
        lock, _ = locks.take_lock(path, "mine")
        assert lock is not None
        assert Path(path).read_text() == "mine"
        beats = Path(private.new_folder("beats", (str(folder), str(place))))
        assert beats.parent == folder
        beats.rmdir()
        loose = Path(private.new_folder("beats", (str(place),)))
        private.replace_file(str(loose / "0.json"), b"{}")
        assert (loose / "0.json").lstat().st_uid == 0
        shutil.rmtree(loose)
        locks.drop_lock(lock, path)
        with contextlib.suppress(OSError):
            folder.rmdir()
    report: dict[str, Any] = attacker.end()
    print(f"\n{rounds} folders raced for, {lost} lost: {report['counts']}")
    return {**report, "lost": lost}


@pytest.fixture
def place(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place there is, and it is open to all."""
    folder = workspace / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private, "LOCAL", (str(folder),))
    monkeypatch.setattr(private, "RUNTIME", (str(workspace / "no-run"), "%d"))
    return folder


@pytest.mark.long
def test_own_folder_is_ours_or_not_used(place: Path, attack) -> None:
    report = race_for_the_own_folder(place, attack, 1000)
    assert report["counts"]["names"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_own_folder_is_ours_or_not_used_many_times(place: Path, attack) -> None:
    report = race_for_the_own_folder(place, attack, 20_000)
    assert report["counts"]["names"] > 100
