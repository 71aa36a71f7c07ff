"""Runs without their terminal: detached, left, watched by others, taken over."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.launch.head import attached, supervisor, views
from clusterctl.launch.head.link import Link
from clusterctl.launch.state import RunResult
from clusterctl.output import Output
from clusterctl.runs import owner
from clusterctl.seal import seal_of
from tests.clusterctl.commands.user import QUESTION, SHORT, Terminal, User
from tests.clusterctl.launch.harness import ranks_of, tagged, wait_until
from tests.lab import Lab


@pytest.mark.long
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
    script = user.command("attach", str(user.run_dir))  # nobody can answer there
    assert script.stderr is not None
    while "node-[1-2] running" not in script.stderr.readline():
        assert script.poll() is None
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=20)
    assert (script.returncode, len(ranks_of(run_id))) == (130, 2)
    assert "the run goes on; clusterctl stop ends it" in err
    terminal.type(b"\x03")
    terminal.wait_for(QUESTION)
    terminal.type(b"\x03")
    terminal.wait_for("stopping on all nodes; once more to kill at once")
    terminal.wait_for("no process of the run is left on 2 nodes")
    assert terminal.process.wait(20) == 130
    assert "\\n" not in terminal.shown
    assert tagged(run_id) == []


@pytest.mark.slow
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
    view.wait_for("no process of the run is left on 2 nodes")
    assert view.process.wait(20) == 130
    assert tagged(run_id) == []


@pytest.mark.long
def test_ctrl_c_while_the_supervisor_starts_stops_it_too(user: User) -> None:
    """It would go on alone, and begin a run that nobody asked for any more."""
    user.program("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    terminal = Terminal(user.start, *SHORT)
    wait_until((user.run_dir / attached.LOG).exists, 20)
    terminal.type(b"\x03")
    terminal.wait_for(QUESTION)
    terminal.type(b"s")
    terminal.wait_for("no process of the run is left on 2 nodes")
    assert terminal.process.wait(20) == 130
    plan = json.loads((user.run_dir / "plan.json").read_text())
    assert tagged(plan["run_id"]) == []
    wait_until(lambda: owner.find(user.run_dir) is None)  # its lock is the last that it drops


def test_supervisor_that_a_ctrl_c_ends_before_it_leaves_the_terminal_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between fork and setsid: the signal waits until the new program is executed."""
    path = tmp_path / "socket"
    interrupted = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    listening = "import socket, time; s = socket.socket(socket.AF_UNIX); "
    listening += f"s.bind({str(path)!r}); s.listen(); time.sleep(60)"
    started = []

    def spawn(*_: object) -> subprocess.Popen[bytes]:
        program = listening if started else interrupted
        started.append(subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL))
        return started[-1]

    run = SimpleNamespace(plan=SimpleNamespace(run_id="1"))
    monkeypatch.setattr(supervisor, "spawn", spawn)
    monkeypatch.setattr(supervisor.saved_run, "read", lambda _: run)
    monkeypatch.setattr(supervisor.owner, "socket_path", lambda _: path)
    try:
        supervisor.start(tmp_path, "begin").close()
        assert [one.poll() for one in started] == [-signal.SIGINT, None]
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_second_launch_of_a_job_is_refused_also_between_two_attempts(user: User) -> None:
    user.program("import os, sys, time\nprint('up', flush=True)\nos.kill(os.getpid(), 11)\n")
    again = (*SHORT[:-2], "--max-restarts", "5")
    first = user.start(*again)
    wait_until(  # of the pause before the third attempt
        lambda: [
            one for one in user.events() if one["event"] == "restart" and one["data"]["wait_s"]
        ]
    )
    code, _, err = user.type(*SHORT)
    assert code == 1
    assert "the same job runs already (run " in err
    assert f"clusterctl attach {user.run_dir} shows it" in err
    first.send_signal(signal.SIGINT)
    assert first.wait(20) == 130


@pytest.mark.slow
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

    file = user.run_dir / ".supervisor.json"  # as after an upgrade
    document = json.loads(file.read_text())
    document |= {"version": "9.1"}
    document.pop("seal")
    file.write_text(json.dumps(document))
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["agents"]) == (3, None)  # no node is asked that a stranger names
    file.write_text(json.dumps({"seal": seal_of(document), **document}))
    code, found = user.ask("status", str(user.run_dir))
    assert (code, found["state"]) == (3, "without supervisor")
    assert found["agents"]["nodes"] == ["node-1", "node-2"]
    assert "was started by clusterctl 9." in found["end"]
    assert found["attempt"] == 1
    refused = user.command("attach", str(user.run_dir), "--detach")
    assert "was started by clusterctl 9." in refused.communicate(timeout=40)[1]
    assert refused.returncode == 2
    assert len(ranks_of(run_id)) == 2


@pytest.mark.long
def test_killed_supervisor_leaves_nothing_on_the_nodes_after_a_while(user: User) -> None:
    process = user.start(*SHORT, "--orphan-timeout", "2s")
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


@pytest.mark.long
@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_run_outlives_its_supervisor_and_another_takes_it_over(
    user: User, tmp_path: Path, shared: bool
) -> None:
    end = user.directory / "end"
    user.program(STEADY.format(end=str(end)))
    if not shared:
        if not isinstance(user.cluster, Lab):
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


@pytest.mark.long
def test_two_supervisors_of_one_run_are_refused(user: User) -> None:
    process = user.start(*SHORT)
    user.run_id()
    with pytest.raises(owner.Owned, match="this run is supervised already, by process"):
        owner.take(user.run_dir)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def test_two_that_ask_at_once_take_neither_for_the_owner(tmp_path: Path) -> None:
    os.close(owner.take(tmp_path))  # its process has ended; the file stays
    with (tmp_path / owner.FILE).open() as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # as `find` does
        assert owner.find(tmp_path) is None


@pytest.mark.slow
def test_two_views_that_stop_a_run_do_not_cut_its_save_short(user: User) -> None:
    saving, saved = user.directory / "saving", user.directory / "saved"
    user.program(
        "import signal, sys, time\nfrom pathlib import Path\n"
        "def save(*_):\n"
        f"    Path({str(saving)!r}).touch()\n"
        f"    while not Path({str(saved)!r}).exists(): time.sleep(0.05)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(130)\n"
        "signal.signal(15, save)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    process = user.start(*SHORT[2:], "--grace", "20")
    path = owner.socket_path(user.run_id())
    first, second = Link(path), Link(path)
    first.send("stop")
    wait_until(saving.exists)
    second.send("stop")
    _, asked = second.first_state(5)
    wait_until(  # the second stop has been heard for long
        lambda: any(
            one["type"] == "state" and one["state"]["seconds"] > asked["state"]["seconds"] + 1.5
            for one in second.take(0.1)
        )
    )
    saved.touch()
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert "saved" in (user.run_dir / "ranks" / "0.log").read_text()
    for link in (first, second):
        link.close()


@pytest.mark.long
def test_detached_launch_returns_as_soon_as_the_run_has_begun(user: User) -> None:
    code, out, _ = user.type(*SHORT, "--detach", "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["detached"]) == (0, True, True)
    assert document["run_dir"] == str(user.run_dir)
    run_id = user.run_id()
    assert len(ranks_of(run_id)) == 2


@pytest.mark.long
def test_run_gets_a_new_supervisor_without_anybody_who_looks(user: User) -> None:
    """As after a reboot of its machine."""
    process = user.start(*SHORT)
    run_id = user.run_id()
    ranks, before = ranks_of(run_id), owner.find(user.run_dir).pid
    os.kill(before, signal.SIGKILL)
    process.wait(20)
    code, document = user.ask("attach", str(user.run_dir), "--detach")
    assert (code, document["run_id"], document["detached"]) == (0, run_id, True)
    after = owner.find(user.run_dir).pid
    assert after != before
    wait_until(lambda: user.ask("status", str(user.run_dir))[1]["state"] == "running", 20)
    assert user.ask("attach", str(user.run_dir), "--detach")[0] == 0
    assert (ranks_of(run_id), owner.find(user.run_dir).pid) == (ranks, after)


def test_supervisor_is_found_again_when_its_socket_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """logind empties a user's folders after the last login; cron's programs go on."""
    monkeypatch.setattr(views, "LOOK_S", 0.05)
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "socket"
    one = views.Views(lambda: path, {"run_id": "1"}, lambda order: None)
    path.unlink()
    folder.rmdir()
    folder.mkdir()
    wait_until(path.exists)
    link = Link(path)
    assert link.about(5)["run_id"] == "1"
    link.close()
    one.end(RunResult(0, ""))
    assert not path.exists()


def test_supervisor_that_cannot_take_a_view_takes_the_next(tmp_path: Path, monkeypatch) -> None:
    fails, accept = [OSError(errno.EMFILE, "Too many open files")], socket.socket.accept

    def accept_later(listener: socket.socket) -> object:
        if fails:
            raise fails.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    one = views.Views(lambda: tmp_path / "socket", {"run_id": "1"}, lambda order: None)
    wait_until(lambda: not fails)
    link = Link(tmp_path / "socket")
    assert link.about(5)["run_id"] == "1"
    link.close()
    one.end(RunResult(0, ""))


@pytest.mark.long
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


@pytest.mark.slow
def test_view_of_a_supervisor_that_is_stopped_says_so(user: User, monkeypatch, capsys) -> None:
    process = user.start(*SHORT)
    run_id = user.run_id()
    supervisor = owner.find(user.run_dir).pid
    os.kill(supervisor, signal.SIGSTOP)
    monkeypatch.setattr(attached, "SILENT_S", 0.5)
    link = Link(owner.socket_path(run_id))
    view = threading.Thread(
        target=attached.follow, args=(link, user.run_dir, Output(), []), daemon=True
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


@pytest.mark.long
def test_kill_ends_a_run_for_good(user: User) -> None:
    """Its ranks die of SIGKILL, which otherwise is a reason to start them again."""
    user.program(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    process = user.start(*SHORT[:-2])
    run_id = user.run_id()
    code, _ = user.ask(
        "kill", str(user.cluster.hostfile), "--run", run_id, "--grace", "0.5", "--yes"
    )
    assert code == 0
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert re.search(r"ended by clusterctl kill \(.+@.+\) on node-", err)
    assert [event["event"] for event in user.events()].count("attempt") == 1
    assert tagged(run_id) == []
