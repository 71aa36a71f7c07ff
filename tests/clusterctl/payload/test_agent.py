"""The agent alone, without ssh: whatever happens to its head, its ranks do not outlive it."""

from __future__ import annotations

import grp
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from clusterctl.payload.files import ownership as trust
from clusterctl.payload.files import private
from clusterctl.payload.launch.about import facts_file
from clusterctl.payload.launch.session import agents_of, socket_path
from clusterctl.remote import payload as ship
from tests.clusterctl.launch.harness import WAIT, ranks_of, tagged, variables, wait_until
from tests.clusterctl.payload.agents import on_the_oldest_too
from tests.clusterctl.payload.local import LocalConnection

DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("stdin", "stdout")), "killed"]
)
def test_ranks_train_on_without_a_head_and_end_after_the_lease(
    agent, tmp_path: Path, how: str
) -> None:
    one = agent(lease_s=4.0)
    pid = one.start(WAIT, tmp_path)
    mine = one.pid
    if how == "killed":
        one.disconnect()
    else:
        getattr(one.process, how).close()
    begun = time.monotonic()
    if how != "stdout":  # only a failed write tells of that
        one.process.wait(5)
        assert ranks_of(one.run_id) == {0: pid}
    wait_until(lambda: not tagged(one.run_id))
    assert how == "stdout" or time.monotonic() - begun > 1.0
    wait_until(lambda: not Path(f"/proc/{mine}").exists())


@pytest.mark.long
def test_ranks_end_when_the_head_is_silent_for_the_lease_and_the_pipe_is_full(
    agent, tmp_path: Path
) -> None:
    one = agent(lease_s=1.5)
    # A talkative rank whose log nobody takes: 64 KiB of pipe are full within the lease.
    one.start(
        "import time\nwhile True:\n    print('x' * 9999, flush=True); time.sleep(0.005)\n", tmp_path
    )
    wait_until(lambda: not tagged(one.run_id), 15)
    wait_until(lambda: not agents_of(one.run_id), 15)


@pytest.mark.long
def test_ranks_that_end_after_the_lease_end_for_a_reason(agent, tmp_path: Path) -> None:
    one = agent(lease_s=1.5)
    one.start(WAIT, tmp_path)
    why = (
        "no supervisor was heard for 1.5 s (--orphan-timeout): its ranks were told to save and end"
    )
    assert one.hear("leaving")["text"] == why


@pytest.mark.long
def test_agent_whose_head_has_gone_before_it_was_heard_ends(agent, tmp_path: Path) -> None:
    """A Ctrl-C while nodes are being connected."""
    holder = agent(job="the-same")
    holder.hear("hello")
    other = {"run": f"{holder.run_id}-2", "run_dir": str(tmp_path / "other")}
    one = agent(job="the-same", first_rank=1, **other)  # waits for the job's lock
    wait_until(lambda: agents_of(one.run_id))
    wait_until(lambda: _has_peer(one.run_id))
    one.disconnect()
    wait_until(lambda: not agents_of(one.run_id), 15)


def _has_peer(run_id: str) -> bool:
    """Whether somebody is connected to an agent's socket."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(run_id[-24:] in line and line.split()[5] == "03" for line in lines) > 0


@pytest.mark.long
def test_ranks_end_with_a_killed_agent(agent, tmp_path: Path) -> None:
    one = agent()
    one.start(WAIT, tmp_path)
    os.kill(one.pid, signal.SIGKILL)
    wait_until(lambda: not tagged(one.run_id))
    assert one.process.wait(5) == 0  # what ssh has started ends with it


@pytest.mark.long
def test_signals_to_the_agent_stop_its_ranks(agent, tmp_path: Path) -> None:
    one = agent()
    one.start(DEAF, tmp_path)
    mine = one.pid
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.kill(mine, number)
    wait_until(lambda: not tagged(one.run_id))
    wait_until(lambda: not agents_of(one.run_id))


@pytest.mark.long
@on_the_oldest_too
def test_head_that_comes_back_gets_what_it_has_not_got_and_nothing_twice(
    agent, tmp_path: Path
) -> None:
    one, go = agent(), tmp_path / "go"
    program = f"""
import os, time
for number in range(20000):
    print("line", number, flush=True)
    if number == 5000:
        while not os.path.exists({str(go)!r}):
            time.sleep(0.02)
"""
    one.start(program, tmp_path)
    text, position = "", 0
    while position < 20000:
        part = one.hear("log")
        assert part["at"] == position
        text, position = text + part["text"], part["end"]
    one.disconnect()
    go.touch()
    wait_until(lambda: "line 19999" in (one.run_dir / "ranks" / "0.log").read_text())
    # It has got hello, started and rank, and of the log what is in `text`.
    one.connect(resume={"seen": 3, "positions": {"0": position}})
    kinds = []
    for line in one.process.stdout:
        if not line.startswith(b"{"):
            continue
        message = json.loads(line)
        kinds.append(message["type"])
        if message["type"] == "log":
            assert message["at"] == position
            text, position = text + message["text"], message["end"]
        if message["type"] == "gone":
            break
    assert text == "".join(f"line {number}\n" for number in range(20000))
    assert [kind for kind in kinds if kind not in ("log", "beat")] == [
        "resumed",
        "rank_ended",
        "ended",
        "gone",
    ]
    one.send(op="bye")
    wait_until(lambda: not agents_of(one.run_id))


@pytest.mark.long
def test_newer_head_replaces_an_older_one(agent, tmp_path: Path) -> None:
    one = agent()
    one.start(WAIT, tmp_path)
    first = one.process
    one.connect(resume={"seen": 3, "positions": {}})
    one.hear("resumed")
    assert first.wait(5) == 0
    first.stdin.close()
    first.stdout.close()
    one.send(op="stop", grace_s=0)
    one.hear("gone")


@pytest.mark.long
def test_nobody_without_the_word_of_the_run_is_a_head(agent, tmp_path: Path) -> None:
    one = agent()
    pid = one.start(WAIT, tmp_path)
    first = one.process
    one.connect(word="another", resume={"seen": 0, "positions": {}})
    assert one.process.wait(5) == 0
    one.process.stdin.close()
    one.process.stdout.close()
    one.process = first
    one.send(op="ping")
    assert one.hear("beat")
    assert ranks_of(one.run_id) == {0: pid}


@pytest.mark.long
def test_agent_that_is_gone_is_told_to_a_head_that_comes_back(agent, tmp_path: Path) -> None:
    one = agent()
    one.hear("hello")
    one.disconnect()
    wait_until(lambda: not agents_of(one.run_id))  # nothing had been started
    one.connect(resume={"seen": 1, "positions": {}})
    assert "its agent has ended" in one.hear("failed")["text"]


@pytest.mark.long
@on_the_oldest_too
def test_stop_order_ends_with_gone(agent, tmp_path: Path) -> None:
    one = agent()
    pid = one.start(WAIT, tmp_path)
    assert ranks_of(one.run_id) == {0: pid}
    beats = variables(pid)["CLUSTERCTL_HEARTBEATS"]
    assert Path(beats).is_dir()
    one.send(op="stop", grace_s=2.0)
    assert one.hear("rank_ended")["how"] == "killed by SIGTERM"
    assert one.hear("gone")["left"] == []
    assert not Path(beats).exists()


@pytest.mark.long
def test_hello_names_the_same_job_that_runs_already(agent, tmp_path: Path) -> None:
    first = agent(job="this-job")
    first.start(WAIT, tmp_path)
    second = agent(job="this-job", run_dir=str(tmp_path / "second"))
    found = second.hear("hello")["same_job"]
    assert {entry["run"] for entry in found} == {first.run_id}


@on_the_oldest_too
def test_log_without_newline_at_its_end_arrives(agent, tmp_path: Path) -> None:
    one = agent()
    one.start("print('first', flush=True); print('the end', end='', flush=True)", tmp_path)
    text = ""
    while not text.endswith("the end"):
        text += one.hear("log")["text"]
    assert text == "first\nthe end"


@pytest.mark.long
def test_end_of_a_log_that_is_too_long_to_carry_arrives_and_the_gap_is_told(
    agent, tmp_path: Path
) -> None:
    one = agent()
    one.start("print(('x' * 99 + chr(10)) * 40000 + 'the end', flush=True)", tmp_path)
    text = ""
    while not text.endswith("the end\n"):
        text += one.hear("log")["text"]
    assert "bytes stayed on the node: " in text
    assert len(text) < 3 << 20


@pytest.mark.long
def test_run_directory_of_another_run_is_not_written_into(agent, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run-id").write_text("earlier\n")
    assert "is not the head's and holds run earlier" in agent().hear("failed")["text"]


@pytest.mark.long
def test_job_is_free_again_when_its_agent_has_gone(agent, tmp_path: Path) -> None:
    first = agent(job="one-at-a-time")
    assert first.hear("hello")["same_job"] == []
    second = agent(job="one-at-a-time", run_dir=str(tmp_path / "second"))
    assert [found["run"] for found in second.hear("hello")["same_job"]] == [first.run_id]
    for one in (first, second):
        one.process.stdin.close()
        one.process.wait(5)
        wait_until(lambda one=one: not agents_of(one.run_id))
    third = agent(job="one-at-a-time", run_dir=str(tmp_path / "third"))
    assert third.hear("hello")["same_job"] == []
    third.send(op="stop", grace_s=0)
    third.hear("gone")
    third.send(op="bye")
    wait_until(lambda: not list(Path(private.own_folder()).glob("*one_at_a_time*")))


@pytest.mark.long
def test_door_is_open_to_the_run_only_and_shut_before_the_start(agent, tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken, socket.create_server(("", 0)) as free:
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        one = agent(ports=ports)
        hello = one.hear("hello")
        assert hello["port"] == ports[1]
        assert socket.gethostname() in hello["addresses"]
        with socket.create_connection(("127.0.0.1", ports[1]), 5) as anybody:
            assert anybody.recv(200) == b"who-listens\n"  # and nothing of the run
        for port in (*ports, 1):
            one.send(op="probe", addresses=["127.0.0.1", "no.such.host.invalid"], port=port)
            if port == ports[0]:
                taken.accept()[0].sendall(b"220 some other service\n")
            errors = one.hear("probed")["errors"]
            assert errors["no.such.host.invalid"]
            assert (errors["127.0.0.1"] is None) == (port == ports[1])
    one.send(op="stop", grace_s=0)
    one.hear("gone")
    with socket.create_server(("", ports[1])):
        pass


@pytest.mark.long
def test_run_directory_that_cannot_be_made_is_said(agent, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    assert "no run directory" in agent().hear("failed")["text"]


@pytest.mark.long
def test_heartbeats_lie_where_no_other_user_can_put_or_read_anything(agent, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    one = agent()
    # A name that the run's id gives away, taken before the start, with a link where a rank will write.
    guessed = Path("/dev/shm") / f"clusterctl-{os.getuid()}-{one.run_id}-here"
    guessed.mkdir()
    try:
        (guessed / "0.pid").symlink_to(victim)
        (guessed / "0.json").symlink_to(victim)
        pid = one.start(WAIT, tmp_path)
        beats = Path(variables(pid)["CLUSTERCTL_HEARTBEATS"])
        assert one.run_id not in str(beats)
        assert trust.why_untrusted(str(beats)) == ""
        assert beats.stat().st_mode & 0o077 == 0
        assert beats.parent.stat().st_mode & 0o077 == 0
        assert victim.read_text() == "precious"
    finally:
        shutil.rmtree(guessed)


@pytest.mark.long
def test_names_of_the_job_and_words_of_other_users_do_not_refuse_a_launch(
    agent, tmp_path: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to be another user too")
    squat = Path("/dev/shm") / f"clusterctl-{os.getuid()}-squatted-here.lock"
    tags = {
        "CLUSTERCTL_RUN": "\x1b]0;owned\x07",
        "CLUSTERCTL_JOB": "squatted",
        "CLUSTERCTL_NODE": "here",
    }
    script = (
        "import fcntl, os, sys, time; file = open(sys.argv[1], 'w'); os.chmod(sys.argv[1], 0o666);"
        "fcntl.flock(file, fcntl.LOCK_EX); file.write('\x1b]0;owned 1'); file.flush();"
        "print('ready', flush=True); time.sleep(60)"
    )
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words = [*nobody, "/usr/bin/env", "python3", "-I", "-S", "-c", script, str(squat)]
    env = {"PATH": "/usr/bin:/bin", **tags}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            assert agent(job="squatted").hear("hello")["same_job"] == []
        finally:
            other.kill()
            squat.unlink(missing_ok=True)


@pytest.mark.long
def test_what_ranks_write_is_for_their_user_alone(agent, tmp_path: Path) -> None:
    program = (
        "import os\nos.makedirs('checkpoint/deep')\nopen('checkpoint/deep/weights', 'w').close()\n"
    )
    one = agent(workdir=str(tmp_path))
    one.start(program + WAIT, tmp_path)
    wait_until(lambda: (tmp_path / "checkpoint/deep/weights").exists())
    found = [one.run_dir, *one.run_dir.rglob("*"), *(tmp_path / "checkpoint").rglob("*")]
    assert {path.name for path in found} >= {"0.log", ".run-id-here", "starter-here.log", "weights"}
    assert [path for path in found if path.stat().st_mode & 0o077] == []


@pytest.mark.long
def test_what_ranks_write_can_be_read_by_a_group(agent, tmp_path: Path) -> None:
    mine = grp.getgrgid(os.getgid())
    one = agent(group=mine.gr_name)
    one.start(WAIT, tmp_path)
    log = one.run_dir / "ranks" / "0.log"
    assert stat.S_IMODE(one.run_dir.stat().st_mode) == 0o2750
    assert stat.S_IMODE(log.parent.stat().st_mode) & 0o777 == 0o750
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    assert {log.stat().st_gid, log.parent.stat().st_gid} == {mine.gr_gid}
    assert (
        "no group no-such-group on this node"
        in agent(group="no-such-group", run_dir=str(tmp_path / "second")).hear("failed")["text"]
    )


@pytest.mark.long
def test_run_directory_that_another_user_has_laid_out_is_refused(agent, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make another user's files")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    tmp_path.chmod(0o1777)
    trap = tmp_path / "run" / "ranks"
    trap.mkdir(parents=True)
    (trap / "0.log").symlink_to(victim)
    os.chown(trap.parent, 65534, 65534)
    assert "open to all" in agent().hear("failed")["text"]
    assert victim.read_text() == "precious"


@pytest.mark.long
def test_program_that_another_user_has_put_in_place_is_refused(agent, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make another user's files")
    tmp_path.chmod(0o1777)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").write_text("#!/bin/sh\n")
    os.chown(tmp_path / "venv", 65534, 65534)
    for args in ({"python": str(tmp_path / "venv/python")}, {"workdir": str(tmp_path / "venv")}):
        text = agent(**args).hear("failed")["text"]
        assert text.startswith("no job can be started here: ")
        assert f"{tmp_path}/venv belongs to user 65534" in text


@pytest.mark.long
def test_workdir_into_which_all_may_put_files_is_refused(agent, tmp_path: Path) -> None:
    """On a node, too: what runs there looks for modules and settings beside it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(0o1777)
    (tmp_path / "link").symlink_to("work")
    for name in ("work", "link"):
        text = agent(workdir=str(tmp_path / name)).hear("failed")["text"]
        assert text.startswith("no job can be started here: every user can put files into ")


@pytest.mark.long
def test_process_of_another_user_with_the_tags_of_a_run_is_no_part_of_it(
    agent, tmp_path: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to be another user too")
    one = agent()
    one.start(WAIT, tmp_path)
    env = {
        "PATH": "/usr/bin:/bin",
        "CLUSTERCTL_RUN": one.run_id,
        "CLUSTERCTL_NODE": "here",
        "RANK": "0",
    }
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env"]
    with subprocess.Popen([*nobody, "sh", "-c", "trap '' TERM; echo up; sleep 60"], env=env, stdout=subprocess.PIPE, start_new_session=True) as other:  # fmt: skip
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            one.send(op="stop", grace_s=1.0)
            assert one.hear("gone")["left"] == []
            assert other.poll() is None
        finally:
            os.killpg(other.pid, signal.SIGKILL)


@pytest.mark.long
def test_agent_of_another_version_hides_no_other_one(agent, tmp_path: Path) -> None:
    one, other = agent(), agent(run_dir=str(tmp_path / "other"))
    one.hear("hello")
    other.hear("hello")
    asked = {"run": None}
    path = Path(facts_file(socket_path(one.run_id, "here")))
    facts = json.loads(path.read_text())
    del facts["since_s"]
    for text in (json.dumps(facts), json.dumps(facts | {"since_s": "now"}), "[]", "{"):
        path.write_text(text)
        found = ship.probe(LocalConnection(), "launch.agents", asked, 20)
        assert other.run_id in {row["run"] for row in found["agents"]}
        assert one.run_id not in {row["run"] for row in found["agents"]}
        assert [row for row in found["unread"] if f"agent of process {one.pid}: " in row]
    found = ship.probe(LocalConnection(), "launch.agents", {"run": other.run_id}, 20)
    assert (len(found["agents"]), found["unread"]) == (1, [])
    found = ship.probe(LocalConnection(), "launch.agents", {"run": one.run_id}, 20)
    assert (found["agents"], len(found["unread"])) == ([], 1)
