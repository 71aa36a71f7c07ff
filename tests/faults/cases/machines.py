"""Faults of whole machines that go on: slow logins, second names, clocks that are set."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping

from clusterctl.nodes import fold
from tests.clusterctl.launch.harness import variables
from tests.faults.cases.nodes import reset_connections
from tests.faults.fault import fault
from tests.faults.rig import Round, kill
from tests.faults.setting import Setting
from tests.lab.node import HOME, LabNode

COMMAND_S = 60.0
SHELL_S = 13  # until a shell of the slow node does what it is told
HOUR_S = 3600
ALIAS = "node-9"


def at_login(node: LabNode, text: str) -> None:
    """What every shell that ssh starts on the node does first."""
    done = node.exec(["sh", "-c", f"printf '%s\\n' {shlex.quote(text)} >> {HOME}/.bashrc"])
    assert done.returncode == 0, done.stderr


def set_at_login(node: LabNode, env: Mapping[str, str]) -> None:
    at_login(node, "\n".join(f"export {name}={shlex.quote(env[name])}" for name in env))


@fault(
    "F36", f"a shell of a node takes {SHELL_S} s to start; its connection is lost, then a rank",
    "signal-9", recovered_s=60.0, setting=Setting(steps=200),
    prepare=lambda one: at_login(one.lab.nodes[1], f"sleep {SHELL_S}"),
)  # fmt: skip
def slow_shell(one: Round) -> None:
    one.until_step(23)
    if not reset_connections(one, one.lab.nodes[1:2]):
        one.notes.append("there was no connection to reset")
    one.until("it is noticed", lambda: one.events("disconnected"))
    one.until("it is connected again", lambda: one.events("reconnected"))
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)


def add_alias(one: Round) -> None:
    """The second node stands in the hostfile with another name, too."""
    with one.lab.hostfile.open("a") as file:
        line = one.lab.hostfile.read_text().splitlines()[1]
        file.write(line.replace(one.lab.names[1], ALIAS, 1) + "\n")


def both_names_are_said(one: Round) -> Iterable[str]:
    lines = [line for line in one.said().splitlines() if "host.same_machine" in line]
    both = f" {fold([one.lab.names[1], ALIAS])} "
    if not any(line.startswith("FAIL") and both in line for line in lines):
        yield f"the two names are not told together: {lines}"


@fault(
    "F37-node", "a machine stands in the hostfile twice, with two names",
    exit_code=1, is_same=False, prepare=add_alias, check=both_names_are_said,
)  # fmt: skip
def two_names(one: Round) -> None:
    one.strike()


def alias_is_left_out(one: Round) -> Iterable[str]:
    if any(ALIAS in event["data"]["nodes"] for event in one.events("attempt")):
        yield "the second name was used"
    if ALIAS not in one.said():
        yield "the launch does not say that the spare is a node"


@fault(
    "F37-spare", "a spare is another name of a node; a rank is killed", "signal-9",
    prepare=add_alias, setting=Setting(words=("--spares", ALIAS)), check=alias_is_left_out,
)  # fmt: skip
def spare_is_a_node(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)


def as_alias(one: Round, *words: str) -> subprocess.CompletedProcess[str]:
    """clusterctl on the head while that has another host name."""
    inner = ["sh", "-c", 'hostname other-name; exec "$@"', "sh", sys.executable, "-m", "clusterctl"]
    return subprocess.run(
        ["unshare", "--uts", *inner, *words],
        cwd=one.code, env=one.environment(), capture_output=True, text=True, timeout=COMMAND_S,
        check=False,
    )  # fmt: skip


@fault("F37-head", "status and attach on the head while that has another host name")
def renamed_head(one: Round) -> None:
    one.until_step(23)
    one.strike()
    seen = as_alias(one, "status", str(one.run_dir))
    if seen.returncode or f"process {one.supervisor}" not in seen.stdout:
        one.notes.append(
            f"status ended with {seen.returncode}: {(seen.stdout + seen.stderr)[-300:]}"
        )
    taken = as_alias(one, "attach", str(one.run_dir), "--detach")
    if taken.returncode == 0 or "is supervised on" not in taken.stderr:
        one.notes.append(f"attach ended with {taken.returncode}: {taken.stderr[-300:]}")
    if one.events("disconnected"):
        one.notes.append("connections were lost")


def clock_can_be_set(one: Round) -> None:
    set_at_login(one.lab.nodes[1], one.answers.env)


@fault(
    "F39-node", "a node's clock is set an hour ahead, then two back (simulated)",
    prepare=clock_can_be_set,
)  # fmt: skip
def node_clock(one: Round) -> None:
    one.until_step(15)
    if "LD_PRELOAD" not in variables(one.ranks[1]):
        one.notes.append("the clock of the rank was not set")
    one.strike()
    one.answers.set_clock(HOUR_S)
    one.until_step(40)
    one.answers.set_clock(-HOUR_S)


def head_clock_can_be_set(one: Round) -> None:
    one.head_env = one.answers.env


def end_is_known(one: Round) -> Iterable[str]:
    """By the files, which have times of three clocks."""
    for verb in ("status", "why"):
        command = one.command(verb, str(one.run_dir), name=verb)
        code, said = command.wait(COMMAND_S), (one.directory / f"{verb}.txt").read_text()
        if code or ("nothing has failed so far" in said):
            yield f"clusterctl {verb} ended with {code}: {said.strip()[-300:]}"


@fault(
    "F39-head", "the head's clock is set a day ahead, then an hour back, then a rank is killed"
    " (simulated)", "signal-9",
    recovered_s=None, prepare=head_clock_can_be_set, check=end_is_known,
)  # fmt: skip
def head_clock(one: Round) -> None:
    one.until_step(15)
    if "LD_PRELOAD" not in variables(one.supervisor):
        one.notes.append("the clock of the supervisor was not set")
    one.answers.set_clock(24 * HOUR_S)
    one.until_step(30)
    one.answers.set_clock(-HOUR_S)
    kill([one.ranks[1]], signal.SIGKILL)
