"""What ends a run, and what does not: signals, machines that go down, stops, two supervisors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

from clusterctl.launch.saved_run import FILE
from tests.clusterctl.launch.harness import parent
from tests.faults.cases.head import killed_and_attached
from tests.faults.cases.nodes import SPARE, spare_was_used
from tests.faults.fault import fault
from tests.faults.rig import REPO, Round, kill

COMMAND_S = 60.0
GOES_DOWN_S = 4.0  # from SIGTERM to the end of the machine


def told(one: Round, pid: int) -> None:
    one.strike()
    kill([pid], signal.SIGTERM)


@fault("O1-rank", "SIGTERM to a rank", "signal-15")
def told_rank(one: Round) -> None:
    one.until_step(23)
    told(one, one.ranks[2])


@fault("O1-starter", "SIGTERM to what starts a node's ranks", "signal-15", recovered_s=60.0)
def told_starter(one: Round) -> None:
    one.until_step(23)
    told(one, parent(one.ranks[2]))


@fault("O1-agent", "SIGTERM to an agent", "node-stopped")
def told_agent(one: Round) -> None:
    one.until_step(23)
    told(one, parent(parent(one.ranks[2])))


def tell_all(one: Round) -> None:
    """As systemd does when a machine goes down: its process 1 stays."""
    node = one.lab.nodes[2]
    one.strike()
    kill([pid for pid in node.processes() if pid != node.pid], signal.SIGTERM)


@fault(
    "O1-node", "a node is started again in order: SIGTERM to all, then it is gone",
    r"node-(stopped|unreachable)", setting=SPARE, check=spare_was_used, recovered_s=40.0,
)  # fmt: skip
def node_goes_down(one: Round) -> None:
    one.until_step(23)
    tell_all(one)
    gone_s = time.monotonic() + GOES_DOWN_S
    one.until("the machine is gone", lambda: time.monotonic() > gone_s)
    one.lab.nodes[2].die()


@fault("O2", "the head goes down in order: SIGTERM to the supervisor and to the view")
def head_goes_down(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.supervisor, one.view.pid], signal.SIGTERM)
    code = one.end(20)
    if code != 3:
        one.notes.append(f"the launch ended with {code}, not 3")
    one.attach()


def exclude(one: Round, verb: str) -> None:
    """All nodes: while they are excluded, the next attempt waits."""
    words = ("exclude", verb, ",".join(one.lab.names), str(one.lab.hostfile))
    why = ("--reason", "a test") if verb == "add" else ()
    one.command(*words, *why, name="exclude").wait(COMMAND_S)


def wait_for_nodes(one: Round) -> None:
    one.until_step(23)
    exclude(one, "add")
    one.strike()
    kill([one.ranks[2]], signal.SIGKILL)
    one.until("it waits", lambda: one.events("waiting"))


def ended_once(one: Round) -> Iterable[str]:
    """Nothing starts it again, also when its nodes may be used again."""
    exclude(one, "remove")
    one.command("attach", str(one.run_dir), "--detach", name="attach").wait(COMMAND_S)
    attempts = len(one.events("attempt"))
    if attempts != 1:
        yield f"there were {attempts} attempts"
    if not one.is_over:
        yield "no end is on record"


def end_by(one: Round, command: str) -> None:
    code = one.command(command, str(one.lab.hostfile), "--yes", name=command).wait(COMMAND_S)
    if code:
        said = (one.directory / f"{command}.txt").read_text()
        one.notes.append(f"clusterctl {command} ended with {code}: {said[-300:]}")


@fault(
    "O3-stop", "clusterctl stop while the run waits for nodes", "signal-9",
    exit_code=130, is_same=False, check=ended_once,
)  # fmt: skip
def stopped_between(one: Round) -> None:
    wait_for_nodes(one)
    end_by(one, "stop")


@fault(
    "O3-kill", "clusterctl kill while the run waits for nodes", "signal-9",
    exit_code=130, is_same=False, check=ended_once,
)  # fmt: skip
def killed_between(one: Round) -> None:
    wait_for_nodes(one)
    end_by(one, "kill")


@fault(
    "O3-alone", "supervisor killed while the run waits, then stopped, then attached", "signal-9",
    exit_code=130, is_same=False, check=ended_once,
)  # fmt: skip
def stopped_alone(one: Round) -> None:
    wait_for_nodes(one)
    kill([one.supervisor], signal.SIGKILL)
    one.end(20)
    end_by(one, "stop")
    exclude(one, "remove")
    one.attach()


@fault(
    "O9", "Ctrl-C, the supervisor killed while it ends the run, then attached", "|user-stop",
    exit_code=130, is_same=False, check=ended_once,
)  # fmt: skip
def killed_after_a_stop(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.view.send_signal(signal.SIGINT)
    one.until(
        "the stop is noted", lambda: '"stopped": "stopped' in (one.run_dir / FILE).read_text()
    )
    killed_and_attached(one)


# A head of another machine that shares the run directory, where flock is local to a machine.
SECOND_HEAD = """
import fcntl, runpy, sys
fcntl.flock = lambda *_: None
sys.argv = ["clusterctl", *sys.argv[1:]]
runpy.run_module("clusterctl", run_name="__main__")
"""


@fault("O8", "attach on a second head that does not see the first one's lock")
def second_head(one: Round) -> None:
    one.until_step(23)
    one.strike()
    words = ["unshare", "--uts", "sh", "-c", 'hostname second-head; exec "$@"', "sh"]
    words += [sys.executable, "-c", SECOND_HEAD, "attach", str(one.run_dir), "--detach"]
    env = {**os.environ, "PYTHONPATH": str(REPO), "NO_COLOR": "1"}
    done = subprocess.run(
        words, cwd=REPO, env=env, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    if done.returncode == 0 or "is supervised on" not in done.stderr:
        one.notes.append(f"the second ended with {done.returncode}: {done.stderr[-300:]}")
    if one.events("disconnected"):
        one.notes.append("connections were lost")
