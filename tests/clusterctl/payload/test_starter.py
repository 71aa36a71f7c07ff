"""The starter under agents: exact ends, a warm start for the next attempt, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from clusterctl.payload.launch.starter import standbys
from clusterctl.remote import payload as ship
from tests.clusterctl.launch.harness import (
    PYTHON,
    REPO,
    STARTER,
    WAIT,
    command_line,
    ranks_of,
    tagged,
    variables,
    wait_until,
)
from tests.clusterctl.payload.agents import Agent, on_the_oldest_too
from tests.clusterctl.payload.local import LocalConnection

FAILS = "import sys\nprint('up', flush=True)\nsys.exit(3)\n"


def finish(one: Agent) -> dict[str, object]:
    """The attempt's end, confirmed as a head does; the agent has gone then."""
    ended = one.hear("ended")
    assert one.hear("gone")["left"] == []
    one.send(op="bye")
    one.process.wait(5)
    return ended


def failed_attempt(agent, tmp_path: Path, **args: object) -> Agent:
    """An agent whose attempt is over and has left its starter."""
    one = agent(**args)
    one.start(FAILS, tmp_path)
    assert finish(one)["code"] == 1
    assert standbys(one.run_id) == [one.starter]
    return one


def reap(run: str, **args: object) -> dict[str, list[dict[str, object]]]:
    return ship.probe(LocalConnection(), "reap", {"run": run, "grace_s": 0.5, **args}, 15)


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, "killed by SIGSEGV"),
        ("sys.exit()", 0, "exit code 0"),
    ],
)
@on_the_oldest_too
def test_end_of_each_rank_is_exact(agent, tmp_path: Path, end: str, code: int, how: str) -> None:
    one = agent(slots=2)
    program = "import os, signal, sys\nprint('up', flush=True)\n"
    one.start(program + f"if os.environ['RANK'] == '1': {end}\nsys.exit(7)", tmp_path)
    found = {}
    for _ in range(2):
        message = one.hear("rank_ended")
        found[message["rank"]] = (message["code"], message["how"])
    assert found == {0: (7, "exit code 7"), 1: (code, how)}
    assert finish(one)["code"] == 1


@pytest.mark.long
@on_the_oldest_too
def test_next_attempt_is_started_by_the_same_process(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    second = agent(run=first.run_id, slots=2, first_rank=4)
    say = "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)\n"
    arguments = ("--first_rank", "4", "--world_size", "6")
    second.order(say + WAIT, tmp_path, *arguments)
    assert second.hear("started")["pid"] == first.starter
    pids = {second.hear("rank")["rank"]: _ for _ in range(2)}
    assert pids.keys() == {4, 5}
    log = second.run_dir / "ranks" / "5.log"
    wait_until(lambda: log.exists() and log.read_text() == "5 6\nup\n")
    beats = variables(ranks_of(first.run_id)[5])["CLUSTERCTL_HEARTBEATS"]
    assert Path(beats).is_dir()  # that of this attempt: the first one's was removed
    second.send(op="stop", grace_s=2.0)
    assert second.hear("rank_ended")["how"] == "killed by SIGTERM"
    finish(second)
    assert standbys(first.run_id) == tagged(first.run_id) == [first.starter]


@pytest.mark.long
def test_next_attempt_reports_its_own_lines_alone(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    second = agent(run=first.run_id)
    second.order("import sys\nprint('again', flush=True)\nsys.exit(4)\n", tmp_path)
    heard = [second.hear("rank_ended", "log") for _ in range(2)]  # in either order
    part, ended = sorted(heard, key=lambda message: str(message["type"]))
    assert (ended["code"], ended["tail"]) == (4, ["again"])
    assert (part["text"], part["at"], part["end"]) == ("again\n", 0, 6)
    assert (second.run_dir / "ranks" / "0.log").read_text() == "up\nagain\n"


@pytest.mark.long
@pytest.mark.parametrize("why", ["killed", "stopped", "environment", "preload", "interpreter"])
def test_next_attempt_starts_cold_where_the_starter_cannot_serve(
    agent, tmp_path: Path, why: str
) -> None:
    first = failed_attempt(agent, tmp_path)
    more: dict[str, object] = {}
    arguments: list[str] = []
    if why in ("killed", "stopped"):
        os.kill(first.starter, signal.SIGKILL if why == "killed" else signal.SIGSTOP)
    elif why == "environment":
        more["env"] = {"NCCL_DEBUG": "INFO"}
    elif why == "preload":
        arguments += ["--preload", "decimal"]
    else:
        more["starter"] = ("/usr/bin/env", PYTHON, "-m", "trainer.starter")
    second = agent(run=first.run_id)
    pid = second.start(WAIT, tmp_path, *arguments, **more)
    if why in ("environment", "preload", "interpreter"):
        assert second.starter == first.starter  # it was asked, and has refused
        (second.starter,) = standbys(first.run_id)
    assert second.starter != first.starter
    assert standbys(first.run_id) == [second.starter]
    assert sorted(tagged(first.run_id)) == sorted([pid, second.starter])


@pytest.mark.long
def test_next_attempt_runs_the_code_that_is_there_then(agent, tmp_path: Path) -> None:
    """On every node: one that has no starter imports it, too."""
    (tmp_path / "own.py").write_text("CODE = 'old'\n")
    given = {"env": {"PYTHONPATH": f"{REPO}:{tmp_path}"}}
    first = agent()
    first.start(FAILS, tmp_path, "--preload", "own", **given)
    finish(first)
    second = agent(run=first.run_id)
    second.start(FAILS, tmp_path, "--preload", "own", **given)
    finish(second)
    assert second.starter == first.starter
    (tmp_path / "own.py").write_text("CODE = 'new'\n")
    third = agent(run=first.run_id)
    say = "import own\nprint('runs', own.CODE, flush=True)\n"
    third.start(say + WAIT, tmp_path, "--preload", "own", **given)
    log = third.run_dir / "ranks" / "0.log"
    wait_until(lambda: "runs new" in log.read_text())
    assert standbys(first.run_id) != [first.starter]


@pytest.mark.long
def test_run_that_ends_well_leaves_no_starter(agent, tmp_path: Path) -> None:
    one = agent()
    one.start("print('up', flush=True)", tmp_path)
    assert one.hear("ended")["code"] == 0
    one.hear("gone")
    assert standbys(one.run_id) == tagged(one.run_id) == []


@pytest.mark.long
def test_starter_of_a_lost_head_ends_with_its_agent(agent, tmp_path: Path) -> None:
    one = agent(lease_s=4.0)
    one.start(FAILS, tmp_path)
    one.hear("gone")
    assert standbys(one.run_id) == [one.starter]
    one.disconnect()  # without a `bye`
    wait_until(lambda: not tagged(one.run_id))


@pytest.mark.long
def test_starter_ends_by_itself_when_nobody_comes(agent, tmp_path: Path) -> None:
    impatient = "import runpy, trainer.starter.serve as s; s.STANDBY_S = 0.5; runpy.run_module('trainer.starter', run_name='__main__')"  # fmt: skip
    one = agent()
    one.start(FAILS, tmp_path, starter=(PYTHON, "-c", impatient))
    finish(one)
    wait_until(lambda: not tagged(one.run_id))


@pytest.mark.long
def test_peers_of_a_failed_rank_end_without_a_head(agent, tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = (
        "import os, sys, time\nprint('up', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "if os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)\n"
    )
    one = agent(slots=2)
    one.start(program, tmp_path)
    one.disconnect()
    go.touch()
    begun = time.monotonic()
    wait_until(lambda: not ranks_of(one.run_id), 15)
    assert time.monotonic() - begun > 4.0  # they find out by themselves, and say why
    one.connect(resume={"seen": 4, "positions": {}})
    found = [one.hear("rank_ended") for _ in range(2)]
    assert [(one["rank"], one["code"]) for one in found] == [(1, 3), (0, -signal.SIGTERM)]


@pytest.mark.long
def test_starter_that_dies_is_reported_and_its_ranks_end(agent, tmp_path: Path) -> None:
    one = agent(slots=2)
    one.start(WAIT, tmp_path)
    os.kill(one.starter, signal.SIGKILL)
    assert one.hear("ended")["code"] == -signal.SIGKILL
    assert one.hear("rank_ended")["how"] == "killed by SIGKILL"
    assert one.hear("gone")["left"] == []
    assert tagged(one.run_id) == []


@pytest.mark.long
def test_starter_that_dies_in_a_later_attempt_is_reported(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    second = agent(run=first.run_id)
    second.start(WAIT, tmp_path)
    os.kill(first.starter, signal.SIGKILL)
    assert second.hear("ended")["code"] is None  # it was not this agent's child
    assert second.hear("gone")["left"] == []
    assert tagged(first.run_id) == []


@pytest.mark.long
def test_warm_ranks_end_with_a_killed_agent(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    second = agent(run=first.run_id)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    second.start(deaf + WAIT, tmp_path)
    os.kill(second.pid, signal.SIGKILL)
    wait_until(lambda: not tagged(first.run_id))


@pytest.mark.long
def test_what_warm_ranks_leave_behind_is_found_without_a_tag(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    second = agent(run=first.run_id)
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execve('/bin/sleep', ['sleep', '98763'], {})\n"
        "    os._exit(0)\n"
        "os.wait()\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    second.start(program, tmp_path)
    sleeper = wait_until(
        lambda: [pid for pid in _pids() if command_line(pid) == b"sleep\x0098763\0"]
    )
    second.send(op="stop", grace_s=0.5)
    assert second.hear("gone")["left"] == []
    assert not Path(f"/proc/{sleeper[0]}").exists()
    assert standbys(first.run_id) == [first.starter]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


@pytest.mark.long
def test_starter_that_stands_by_is_no_running_job(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path, job="the-job")
    second = agent(job="the-job", run_dir=str(tmp_path / "second"))
    assert second.hear("hello")["same_job"] == []
    assert tagged(first.run_id) == []
    second.send(op="stop", grace_s=0)


@pytest.mark.long
def test_starter_that_still_imports_is_a_running_job(agent, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    (tmp_path / "slow_to_import.py").write_text(wait)
    first = agent(job="importing")
    path = f"{REPO}:{tmp_path}"
    first.order(WAIT, tmp_path, "--preload", "slow_to_import", env={"PYTHONPATH": path})
    starter = first.hear("started")["pid"]
    second = agent(job="importing", run_dir=str(tmp_path / "second"))
    assert first.run_id in {found["run"] for found in second.hear("hello")["same_job"]}
    go.touch()
    assert first.hear("rank")["rank"] == 0
    assert standbys(first.run_id) == [starter]


@pytest.mark.long
def test_reap_leaves_the_starter_alone_where_it_is_asked_to(agent, tmp_path: Path) -> None:
    first = failed_attempt(agent, tmp_path)
    answer = reap(first.run_id, keep_standby=True)
    assert answer["found"] == answer["left"] == []
    assert tagged(first.run_id) == [first.starter]
    tags = {"CLUSTERCTL_RUN": first.run_id, "CLUSTERCTL_NODE": "here"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **tags}) as stray:
        answer = reap(first.run_id, keep_standby=True)
        assert [row["pid"] for row in answer["found"]] == [stray.pid]
        assert answer["left"] == []
    assert standbys(first.run_id) == [first.starter]
    answer = reap(first.run_id)
    assert [row["pid"] for row in answer["found"]] == [first.starter]
    assert tagged(first.run_id) == answer["left"] == []


@pytest.mark.long
def test_tools_see_ranks_as_programs_of_their_own(agent, tmp_path: Path) -> None:
    one = agent(slots=2, first_rank=4)
    loader = (
        "import multiprocessing, time\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "    worker.start()\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    one.order(loader, tmp_path, "--first_rank", "4", "--world_size", "6")
    starter = one.hear("started")["pid"]
    logs = [one.run_dir / "ranks" / f"{rank}.log" for rank in (4, 5)]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs))
    pick = {"runs": [one.run_id]}
    found = ship.probe(LocalConnection(), "kill", {"op": "look", "pick": pick}, 15)["rows"]
    seen = [(row["role"], row["rank"], row["index"], row["program"]) for row in found]
    name = "python3.11" if "3.11" in PYTHON else Path(PYTHON).name
    assert (seen[0], found[0]["pid"]) == (
        ("launcher", None, None, f"{name} -m trainer.starter"),
        starter,
    )
    assert sorted(seen[1:]) == [
        ("loader", 4, 0, f"{name} program.py"),
        ("loader", 5, 0, f"{name} program.py"),
        ("trainer", 4, None, f"{name} program.py"),
        ("trainer", 5, None, f"{name} program.py"),
    ]
    assert {row["world"] for row in found[1:]} == {6}


def warm(one: dict[str, object]) -> object:
    return ship.probe(LocalConnection(), "launch.warm", one, 15)["error"]


@pytest.fixture
def spare(tmp_path: Path):
    """Arguments of `launch.warm` for a node whose preloaded module waits for a file."""
    wait = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
    )
    (tmp_path / "slow_to_import.py").write_text(wait)
    run = f"spare-{os.getpid()}-{time.monotonic_ns()}"
    argv = [*STARTER, "--preload", "slow_to_import", "program.py"]
    given = {"PYTHONPATH": f"{REPO}:{tmp_path}", "GLOO_SOCKET_IFNAME": "auto"}
    node = {"run": run, "job": f"job-{run}", "node": "here", "slots": 1, "group": ""}
    paths = {"run_dir": str(tmp_path / "run"), "workdir": "/", "python": PYTHON}
    yield {**node, **paths, "argv": argv, "env": given}
    reap(run)


@pytest.mark.long
def test_spare_imports_before_its_agent_comes(agent, tmp_path: Path, spare) -> None:
    run = spare["run"]
    assert warm(spare) is None
    (starter,) = standbys(run)
    assert warm(spare) is None
    assert standbys(run) == [starter]  # one is enough
    one = agent(run=run)
    one.order(WAIT, tmp_path, "--preload", "slow_to_import", env=spare["env"])
    assert one.hear("started")["pid"] == starter
    assert one.hear("beat")["ranks"] == {}  # the agent does not wait for the import
    (tmp_path / "go").touch()
    assert one.hear("rank")["rank"] == 0
    (pid,) = ranks_of(run).values()
    assert variables(pid)["GLOO_SOCKET_IFNAME"] == "lo"
    one.send(op="stop", grace_s=1.0)
    finish(one)


@pytest.mark.long
@pytest.mark.parametrize("why", ["dies", "environment"])
def test_ranks_start_cold_where_the_starter_of_a_spare_cannot_serve(
    agent, tmp_path: Path, spare, why: str
) -> None:
    run = spare["run"]
    assert warm(spare) is None
    (starter,) = standbys(run)
    one = agent(run=run)
    more = {"NCCL_DEBUG": "INFO"} if why == "environment" else {}
    one.order(WAIT, tmp_path, "--preload", "slow_to_import", env={**spare["env"], **more})
    assert one.hear("started")["pid"] == starter
    if why == "dies":
        os.kill(starter, signal.SIGKILL)
    (tmp_path / "go").touch()
    another = one.hear("started")["pid"]
    assert one.hear("rank")["rank"] == 0
    assert [another] == standbys(run) != [starter]
    one.send(op="stop", grace_s=1.0)
    finish(one)


@pytest.mark.long
def test_starter_of_a_spare_stands_by_while_it_is_asked_to(tmp_path: Path, spare) -> None:
    (tmp_path / "go").touch()
    impatient = "import runpy, trainer.starter.serve as s; s.STANDBY_S = 1.5; runpy.run_module('trainer.starter', run_name='__main__')"  # fmt: skip
    asked = {**spare, "argv": [PYTHON, "-c", impatient, *spare["argv"][len(STARTER) :]]}
    assert warm(asked) is None
    (starter,) = standbys(spare["run"])
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        assert warm(asked) is None
        assert standbys(spare["run"]) == [starter]
    wait_until(lambda: not tagged(spare["run"]))


@pytest.mark.long
def test_spare_that_cannot_start_says_why(spare) -> None:
    assert "No such file" in warm({**spare, "argv": ["/nowhere/python", "x.py"]})
    assert standbys(spare["run"]) == []
