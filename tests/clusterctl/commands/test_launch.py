"""`clusterctl launch` as a user types it: signals, exit codes, what it prints."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from checks.finding import Finding, Report, Verdict
from clusterctl import cli
from clusterctl.commands import launch
from clusterctl.errors import Declined
from clusterctl.launch.head import attached, owner
from clusterctl.launch.head.link import Link
from clusterctl.launch.inputs import LaunchLine
from clusterctl.launch.start import Prepared
from clusterctl.output import Output
from tests.clusterctl.launch.harness import PYTHON, WAIT, ranks_of, read_lines, tagged, wait_until
from tests.lab import why_not

# Stands for the interpreter on the nodes: `trainer.train` is the test's program, the rest is real.
FAKE_PYTHON = """#!/bin/sh
PYTHONPATH={folder} exec {python} "$@"
"""
FAKE_TRAINER = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        files = {{"trainer.train": {program!r}, "trainer.starter.train_modules": {empty!r}}}
        return importlib.util.spec_from_file_location(name, files[name]) if name in files else None

sys.meta_path.insert(0, Finder)
"""
SHORT = (
    "--grace", "3", "--min-free", "0", "--skip-preflight", "--yes", "--max-restarts", "0",
)  # fmt: skip


class User:
    """Types commands in a folder of its own; what it starts is ended with the test."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.outputs = directory / "outputs"
        self.python = directory / "python"
        self.config = directory / "tiny.py"
        self.config.write_text("model = dict(type='STDiT3-XL/2')\n")
        self.processes: list[subprocess.Popen[str]] = []

    def program(self, text: str) -> None:
        """What a rank runs."""
        script = self.directory / "program.py"
        script.write_text(text)
        folder = self.directory / "site"
        folder.mkdir(exist_ok=True)
        (folder / "empty.py").touch()
        fake = FAKE_TRAINER.format(program=str(script), empty=str(folder / "empty.py"))
        (folder / "sitecustomize.py").write_text(fake)
        words = {"folder": shlex.quote(str(folder)), "python": shlex.quote(PYTHON)}
        self.python.write_text(FAKE_PYTHON.format(**words))
        self.python.chmod(0o755)

    def start(
        self,
        *words: str,
        hostfile: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        preexec_fn: Callable[[], object] | None = None,
        **env: str,
    ) -> subprocess.Popen[str]:
        argv = [
            sys.executable, "-m", "clusterctl", "launch", str(self.config),
            str(hostfile or self.cluster.hostfile),
            "--outputs", str(self.outputs), "--python", str(self.python), *words,
        ]  # fmt: skip
        options = {"stdin": stdin, "stderr": stderr, "preexec_fn": preexec_fn}
        return self._start(argv, env, **options)

    def command(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Another command of clusterctl than launch."""
        return self._start([sys.executable, "-m", "clusterctl", *words], {}, **options)

    def ask(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and document of a command."""
        process = self.command(*words, "--json")
        out, _ = process.communicate(timeout=40)
        return process.returncode, json.loads(out)

    def _start(
        self, argv: Sequence[str], env: dict[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **env}, **pipes,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what is left: views, supervisors, ranks."""
        for process in self.processes:
            process.kill()
            process.communicate()
        for run_dir in self.outputs.glob("*-*"):
            found = owner.find(run_dir)
            if found is not None:
                os.kill(found.pid, signal.SIGKILL)
            plan = run_dir / "plan.json"
            for pid in tagged(json.loads(plan.read_text())["run_id"]) if plan.exists() else ():
                os.kill(pid, signal.SIGKILL)

    def type(self, *words: str, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a launch that ends by itself."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=40)
        return process.returncode, out, err

    @property
    def run_dir(self) -> Path:
        return self.outputs / "001-STDiT3-XL-2"

    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.run_dir / "events.jsonl")

    def run_id(self) -> str:
        """Of the first run, once all of its ranks are there."""
        logs = [self.run_dir / "ranks" / f"{rank}.log" for rank in (0, 1)]
        wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), 20)
        return str(json.loads((self.run_dir / "plan.json").read_text())["run_id"])


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> Any:
    make = request.getfixturevalue("module_lab" if why_not() is None else "module_loopback")
    return make(2)


@pytest.fixture
def user(nodes: Any, request: pytest.FixtureRequest) -> Iterator[User]:
    directory = Path(nodes.hostfile).parent / f"user-{time.monotonic_ns()}"
    directory.mkdir()
    one = User(nodes, directory)
    one.program(WAIT)
    yield one
    one.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything(user: User, number: signal.Signals) -> None:
    process = user.start(*SHORT)
    run_id = user.run_id()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "stopping on all nodes; once more to kill at once" in err
    assert "nothing of it is left running on 2 nodes" in err
    assert tagged(run_id) == []


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]], *words: str) -> None:
        self.head, terminal = os.openpty()
        self.process = start(
            *words,
            stdin=terminal,
            stderr=terminal,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),
        )
        os.close(terminal)
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self.head, keys)

    def wait_for(self, text: str) -> None:
        os.set_blocking(self.head, False)

        def is_there() -> bool:
            with contextlib.suppress(OSError):
                self.shown += os.read(self.head, 1 << 16).decode()
            return text in self.shown

        wait_until(is_there, 20)


QUESTION = "[d]etach (it trains on), [s]top, [c]ancel?"


def test_ctrl_c_on_a_terminal_asks_and_a_second_one_stops_everything(user: User) -> None:
    terminal = Terminal(user.start, *SHORT)
    run_id = user.run_id()
    terminal.wait_for("\x1b[2Knode-[1-2] running")
    terminal.type(b"\x03")
    terminal.wait_for(QUESTION)
    terminal.type(b"c")
    terminal.shown = ""
    terminal.wait_for("node-[1-2] running")
    assert len(ranks_of(run_id)) == 2
    terminal.type(b"\x03")
    terminal.wait_for(QUESTION)
    terminal.type(b"\x03")
    terminal.wait_for("stopping on all nodes; once more to kill at once")
    terminal.wait_for("nothing of it is left running on 2 nodes")
    assert terminal.process.wait(20) == 130
    assert tagged(run_id) == []


def test_run_that_is_left_goes_on_and_another_view_stops_it(user: User) -> None:
    terminal = Terminal(user.start, *SHORT)
    run_id = user.run_id()
    ranks = ranks_of(run_id)
    terminal.type(b"\x03")
    terminal.wait_for(QUESTION)
    terminal.type(b"d")
    assert terminal.process.wait(20) == 0
    assert ranks_of(run_id) == ranks
    view = Terminal(user.command, "attach", str(user.run_dir))
    view.wait_for("node-[1-2] running")
    view.type(b"\x03")
    view.wait_for(QUESTION)
    view.type(b"s")
    view.wait_for("nothing of it is left running on 2 nodes")
    assert view.process.wait(20) == 130
    assert tagged(run_id) == []


def test_closed_terminal_leaves_the_run_which_status_and_runs_show(user: User) -> None:
    process = user.start(*SHORT)
    run_id = user.run_id()
    process.stdout.close()
    process.stderr.close()  # nothing can be printed any more
    process.send_signal(signal.SIGHUP)
    process.wait(20)
    assert len(ranks_of(run_id)) == 2
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"], found["attempt"]) == (0, "running", 1)
    assert found["nodes"] == {"running": ["node-1", "node-2"]}
    pid = owner.find(user.run_dir).pid
    assert f"process {pid} on " in found["supervisor"]
    (run,) = user.ask("runs", str(user.cluster.hostfile))[1]["runs"]
    assert (run["run_id"], run["nodes"], run["ranks"]) == (run_id, ["node-1", "node-2"], 2)
    assert run["supervisors"][0].endswith(f"process {pid}")

    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: user.ask("runs", str(user.cluster.hostfile))[1]["runs"][0]["supervisors"] == []
    )
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (3, "without supervisor")
    assert found["end"] == f"clusterctl attach {user.run_dir} continues with it"
    assert 86000 < found["agents"]["ends_without_supervisor_in_s"] < 86400


def test_killed_supervisor_leaves_nothing_on_the_nodes_after_a_while(user: User) -> None:
    process = user.start(*SHORT, "--keep-for", "2s")
    run_id = user.run_id()
    assert len(ranks_of(run_id)) == 2
    os.kill(owner.find(user.run_dir).pid, signal.SIGKILL)
    begun = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "error: the supervisor of this run has ended" in err
    assert f"clusterctl attach {user.run_dir} continues with it" in err
    wait_until(lambda: not tagged(run_id), 10)
    print(f"head killed to nodes empty: {time.monotonic() - begun:.1f} s")


def test_failed_rank_is_told_with_its_last_lines_and_exit_code_1(user: User) -> None:
    user.program("import sys\nprint('out of cheese', flush=True)\nsys.exit(7)\n")
    code, _, err = user.type(*SHORT, "--nproc_per_node", "1", "-w", "node-2")
    assert code == 1
    assert "error: rank 0 on node-2: exit code 7\n  | out of cheese\n" in err
    assert f"logs: {user.run_dir}/ranks/" in err


def test_json_is_one_document_however_it_ends(user: User) -> None:
    user.program("print('done')")
    code, out, _ = user.type(*SHORT, "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["exit_code"]) == (0, True, 0)
    assert document["run_dir"] == str(user.run_dir)
    user.program("import sys; sys.exit(7)")
    code, out, _ = user.type(*SHORT, "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["exit_code"]) == (1, False, 1)
    assert "exit code 7" in document["reason"]
    code, out, _ = user.type("--json", "--min-free", "1e9", "--yes")
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    assert "preflight" in document["reason"]


WRITES = """import os
folder = os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "checkpoints")
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, os.environ["RANK"]), "w").close()
print("done")
"""


def test_what_a_launch_writes_is_for_its_user_alone(user: User) -> None:
    user.program(WRITES)
    code, _, err = user.type(*SHORT, preexec_fn=lambda: os.umask(0o022))
    assert code == 0, err
    found = [user.outputs, *user.outputs.rglob("*")]
    names = {path.name for path in found}
    assert names >= {"plan.json", "events.jsonl", "0.log", "1.log", "checkpoints", ".run-id"}
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_what_a_launch_writes_can_be_shared_with_a_group(user: User) -> None:
    user.program(WRITES)
    group = grp.getgrgid(os.getgid()) if os.getuid() else grp.getgrall()[-1]
    code, _, err = user.type(*SHORT, "--share", group.gr_name, preexec_fn=lambda: os.umask(0o022))
    assert code == 0, err
    assert f"readable by group {group.gr_name}" in err
    found = [path for path in [user.outputs, *user.outputs.rglob("*")] if path.name != ".lock"]
    for path in found:
        assert path.stat().st_gid == group.gr_gid, path
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
    assert user.type(*SHORT, "--share", "no-such-group")[0] == 2


def test_overrides_reach_the_trainer_as_they_are(user: User) -> None:
    user.program("import json, sys; print(json.dumps(sys.argv[1:]))")
    words = ["--dataset.data-path", "a b;echo 'INJECTED'", "--lr", "1e-4"]
    code, _, err = user.type(*SHORT, *words)
    assert code == 0, err
    assert json.loads((user.run_dir / "ranks/1.log").read_text()) == [str(user.config), *words]


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The trainer's words of a dry run that connects to nobody."""
    code = cli.run(["launch", *words, "--dry-run", "--skip-preflight", "--json"])
    assert code == 0, capsys.readouterr().err
    program: list[str] = json.loads(capsys.readouterr().out)["plan"]["program"]
    return program[3:]


def test_words_of_the_trainer_are_told_from_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("n[1-2]\n")
    (tmp_path / "c.py").write_text("")
    monkeypatch.setattr("clusterctl.launch.inputs.resolve", lambda *_, **__: LaunchLine("M-1", {}))
    assert dry(capsys, "c.py", "--lr", "1e-4") == ["--lr", "1e-4"]  # no HOSTFILE: nodes.txt here
    assert dry(capsys, "c.py", "nodes.txt", "--lr", "-1", "-qv") == ["--lr", "-1"]
    assert dry(capsys, "c.py", "--nproc_per_node", "2", "--a.b=x", "-w", "n1", "y") == [
        "--a.b=x",
        "y",
    ]
    sizes = ["--bucket", "1", "2", "--load", "outputs/3"]
    assert dry(capsys, "c.py", *sizes, "--outputs", "o") == sizes
    assert dry(capsys, "--hostfile", "nodes.txt", "c.py") == []
    code = cli.run(
        ["launch", "c.py", "--dry-run", "--skip-preflight", "--json", "--", "-w", "--yes"]
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out)["plan"]["program"][3:] == ["-w", "--yes"]


def test_key_that_the_trainer_has_not_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("demo", "nodes.txt", "--nosuch", "3"), ("demo", "--nosuch", "nodes.txt")):
        assert cli.run(["launch", *words, "--yes"]) == 2
        assert capsys.readouterr().err == "error: --nosuch: there is no key nosuch\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("--nproc_per_nod", "2"), ("--hostfil", "x"), ("nodes.txt", "more"), ("--outputs",)]
)
def test_slips_do_not_reach_the_trainer(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("n1\n")
    (tmp_path / "c.py").write_text("")
    assert cli.run(["launch", "c.py", *words]) == 2


def test_busy_gpus_alone_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = Finding(
        "gpu.busy", Verdict.FAIL, ("n1",), evidence="1 process on the GPUs: alice python"
    )
    broken = Finding("gpu.count", Verdict.FAIL, ("n1",), "7 of 8")
    good = Finding("host.disk", Verdict.PASS, ("n1",), "2 TB free")

    def judge(*findings: Finding, yes: bool = False) -> int:
        report = Report(("n1",), findings)
        return launch._judge(Output(), Prepared("cuda", {"n1": 8}, report), assume_yes=yes)

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert judge(good) == 0
    assert judge(busy, good, yes=True) == 0
    assert judge(busy, broken, yes=True) == 1
    with pytest.raises(Declined, match="nothing was started") as declined:
        judge(busy, good)
    assert declined.value.exit_code == 4
    assert "in use on n1" in (declined.value.hint or "")
    assert "alice python" in capsys.readouterr().err


def test_dry_run_shows_the_plan_and_starts_nothing(user: User) -> None:
    secrets = {"WANDB_API_KEY": "wandb-0123456789", "FOO_TOKEN": "foo-0123456789"}
    for words in ((), ("--json",)):
        code, out, err = user.type(*SHORT, "--dry-run", "--nccl", "ethernet", *words, **secrets)
        assert code == 0, err
        assert "WANDB_API_KEY" in out
        assert "NCCL_IB_DISABLE" in out
        assert "FOO_TOKEN" not in out
        assert "0123456789" not in out + err
    assert not user.outputs.exists()


def test_hostfile_with_comments_slots_user_and_alias(user: User) -> None:
    first, second = user.cluster.hostfile.read_text().splitlines()
    fields = dict(word.split("=", 1) for word in second.split()[1:])
    hostfile = user.directory / "mixed.txt"
    hostfile.write_text(
        f"# the cluster\n\n{first} slots=2  # two ranks\n"
        f"{fields['user']}@{fields['host']} port={fields.get('port', '22')} "
        f"identity={fields['identity']} known_hosts={fields['known_hosts']}\n"
    )
    user.program("import os; print(os.environ['CLUSTERCTL_NODE'])")
    code, _, err = user.type(*SHORT, hostfile=hostfile)
    assert code == 0, err
    logs = [(user.run_dir / "ranks" / f"{rank}.log").read_text() for rank in range(3)]
    assert logs == ["node-1\n", "node-1\n", f"{fields['host']}\n"]


def test_node_may_be_an_alias_of_ssh_config(user: User) -> None:
    fields = dict(
        word.split("=", 1) for word in user.cluster.hostfile.read_text().split()[1:6] if "=" in word
    )
    home = user.directory / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(
        f"Host trainbox\n  HostName {fields['host']}\n  Port {fields.get('port', '22')}\n"
        f"  User {fields['user']}\n  IdentityFile {fields['identity']}\n"
    )
    hostfile = user.directory / "alias.txt"
    hostfile.write_text(f"trainbox known_hosts={user.cluster.known_hosts}\n")
    user.program("print('ran')")
    code, _, err = user.type(
        *SHORT, "--master_addr", fields["host"], hostfile=hostfile, HOME=str(home)
    )
    assert code == 0, err
    assert (user.run_dir / "ranks" / "0.log").read_text() == "ran\n"


def test_wrong_usage_is_exit_2(user: User) -> None:
    code, _, err = user.type(*SHORT, hostfile=user.directory / "missing.txt")
    assert (code, "missing.txt" in err) == (2, True)
    code, _, err = user.type(*SHORT, "--env", "no-equals-sign")
    assert (code, "is neither NAME=VALUE nor NAME" in err) == (2, True)
    user.config.unlink()
    assert user.type(*SHORT)[0] == 2
    assert not user.outputs.exists()


def test_secret_can_be_named_and_is_not_typed(user: User) -> None:
    user.program("import os; print(os.environ['MY_PAT'])")
    code, _, err = user.type(*SHORT, "--env", "MY_PAT", MY_PAT="pat-123456")
    assert code == 0, err
    assert (user.run_dir / "ranks/0.log").read_text() == "pat-123456\n"
    assert "other users of this machine can read" not in err
    assert "pat-123456" not in (user.run_dir / "plan.json").read_text() + err
    code, _, err = user.type(*SHORT, "--env", "MY_PAT=pat-123456")
    assert "other users of this machine can read --env MY_PAT=…; --env MY_PAT alone" in err
    code, _, err = user.type(*SHORT, "--env", "MY_PAT")
    assert (code, "your environment has no such variable" in err) == (2, True)


def test_unreachable_node_is_exit_3_and_nothing_is_started(user: User) -> None:
    hostfile = user.directory / "dead.txt"
    hostfile.write_text(
        user.cluster.hostfile.read_text() + "dead host=127.0.0.1 port=1 identity=/none\n"
    )
    for words in (SHORT, ("--min-free", "0", "--yes")):
        code, _, err = user.type(*words, hostfile=hostfile)
        assert code in ((3,) if words is SHORT else (1, 3)), err
        assert "tcp" in err
        assert "nothing was started" in err
    assert not list(user.outputs.glob("*/ranks/*.log"))


STEADY = """
import time
from pathlib import Path
end = Path({end!r})
number = 0
while not end.exists():
    number += 1
    print("line", number, flush=True)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("shared", [True, False])
def test_run_outlives_its_supervisor_and_another_takes_it_over(
    user: User, tmp_path: Path, shared: bool
) -> None:
    end = user.directory / "end"
    user.program(STEADY.format(end=str(end)))
    if not shared:
        if user.cluster.kind != "lab":
            pytest.skip("nodes see all of this machine's files")
        user.outputs = tmp_path / "outputs"  # logs come over the wire
    process = user.start(*SHORT)
    run_id = user.run_id()
    ranks = ranks_of(run_id)
    os.kill(owner.find(user.run_dir).pid, signal.SIGKILL)
    process.wait(20)
    view = user.command("attach", str(user.run_dir), "--json")
    wait_until(lambda: owner.find(user.run_dir), 20)
    wait_until(lambda: "supervisor" in [event["event"] for event in user.events()], 20)
    assert ranks_of(run_id) == ranks
    end.touch()
    wait_until(lambda: not owner.find(user.run_dir), 20)
    assert user.ask("status", str(user.run_dir))[1]["state"] == "ended"
    out, err = view.communicate(timeout=30)
    document = json.loads(out)
    assert (view.returncode, document["ok"], document["attempts"]) == (0, True, 1), err
    names = [(event["event"], event["node"], event["text"]) for event in user.events()]
    assert len(names) == len(set(names))
    for rank in (0, 1):
        lines = (user.run_dir / "ranks" / f"{rank}.log").read_text().splitlines()
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert tagged(run_id) == []


def test_two_supervisors_of_one_run_are_refused(user: User) -> None:
    process = user.start(*SHORT)
    user.run_id()
    with pytest.raises(owner.Owned, match="this run is supervised already, by process"):
        owner.take(user.run_dir)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def test_detached_launch_returns_as_soon_as_the_run_has_begun(user: User) -> None:
    code, out, _ = user.type(*SHORT, "--detach", "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["detached"]) == (0, True, True)
    assert document["run_dir"] == str(user.run_dir)
    run_id = user.run_id()
    assert len(ranks_of(run_id)) == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--spares", "node-2", "-w", "node-[1-2]"],
            "node-2 is in -w node-[1-2] and in --spares node-2",
        ),
        (
            ["--spares", "node-2", "-x", "node-2"],
            "node-2 is in --spares node-2 and is left out by -x",
        ),
        (["--spares", "node-[1-2]"], "no node is left to begin with: all are spares or excluded"),
        (["--min-nodes", "3"], "--min-nodes 3 is more than the 2 nodes of the run"),
    ],
)
def test_wrong_choices_of_nodes_are_refused(user: User, words: list[str], text: str) -> None:
    code, _, err = user.type(*SHORT, *words)
    assert code == 2
    assert f"error: {text}" in err
    assert not user.outputs.exists()


def test_attach_to_a_run_that_is_over_or_gone_is_one_sentence(user: User) -> None:
    user.program("print('done')")
    assert user.type(*SHORT)[0] == 0
    for run, text in (
        (user.run_dir, f"no run continues in {user.run_dir}"),
        ("gone", "there is no run gone"),
    ):
        process = user.command("attach", str(run))
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert err.startswith(f"error: {text}")


def test_view_of_a_supervisor_that_is_stopped_says_so(user: User, monkeypatch, capsys) -> None:
    process = user.start(*SHORT)
    run_id = user.run_id()
    supervisor = owner.find(user.run_dir).pid
    os.kill(supervisor, signal.SIGSTOP)
    monkeypatch.setattr(attached, "SILENT_S", 0.5)
    monkeypatch.setattr(attached, "handled_by", lambda handler: contextlib.nullcontext())
    link = Link(owner.socket_path(run_id))
    view = threading.Thread(
        target=attached.follow, args=(link, user.run_dir, Output()), daemon=True
    )
    view.start()
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "the supervisor has said nothing for 0.5 s: stopped, or its disk hangs" in said

    wait_until(is_told)
    os.kill(supervisor, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    view.join(10)
    assert not view.is_alive()
