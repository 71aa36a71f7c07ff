"""Disks that are full to the last byte, on the nodes and on the head, and file systems without locks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clusterctl.launch.harness import variables
from tests.faults.cases.head import killed_and_attached
from tests.faults.cases.machines import set_at_login
from tests.faults.fault import fault
from tests.faults.proof import lines_lost, step_of
from tests.faults.rig import Round, kill
from tests.faults.setting import Setting
from trainer.runlog import telemetry

COMMAND_S = 60.0
APART = Setting(outputs_mb=40, nodes_mb=200)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """No byte more can be written there."""
    filler = disk / "filler"
    size = 1 << 20
    with filler.open("wb", buffering=0) as file:
        while size:  # what is left becomes smaller pieces
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    try:
        yield
    finally:
        filler.unlink()


def done_steps(one: Round) -> int:
    """By what the ranks note elsewhere, whether or not the run can write."""
    return max((line["step"] for line in one.samples()), default=0)


def loss_is_said(one: Round) -> Iterable[str]:
    """What was not written is counted, and a later save is whole."""
    steps = sorted(step_of(path.name) for path in one.checkpoints)
    if 30 in steps or steps[-1] != one.setting.steps:
        yield f"checkpoints are of steps {steps}"
    if not lines_lost(one):
        yield "the run does not say that lines are lost"


@fault(
    "F35-node", "the disk of the run directory is full on the nodes for a save, not on the head",
    setting=APART, check=loss_is_said,
)  # fmt: skip
def full_on_nodes(one: Round) -> None:
    one.until_step(23)
    with full(one.nodes_outputs):
        one.strike()
        one.until("ten steps more", lambda: done_steps(one) >= 34)


@fault(
    "F35-head", "the disk of the run directory is full on the head, not on the nodes; a rank is killed"
    " meanwhile", "signal-9", recovered_s=None, setting=APART,
)  # fmt: skip
def full_on_head(one: Round) -> None:
    one.until_step(23)
    with full(one.outputs):
        one.strike()
        kill([one.ranks[1]], signal.SIGKILL)
        again = done_steps(one) + 10
        one.until("steps again", lambda: done_steps(one) >= again)


def second_is_refused(one: Round) -> None:
    second = subprocess.run(
        [sys.executable, "-c", SUPERVISE, str(one.run_dir)],
        cwd=one.code, env=one.environment(), capture_output=True, text=True, timeout=COMMAND_S,
        check=False,
    )  # fmt: skip
    if second.returncode == 0 or f"process {one.supervisor}" not in second.stderr:
        one.notes.append(f"a second owner: {second.returncode}, {second.stderr[-300:]}")


SUPERVISE = """
import pathlib, sys
from clusterctl.runs import owner
owner.take(pathlib.Path(sys.argv[1]))
"""


def no_locks_on_head(one: Round) -> None:
    one.head_env = one.answers.without_locks(one.directory)


@fault(
    "F41-head", "no locks in the head's folders (ENOLCK, simulated): a second owner is"
    " refused, and one that was killed is followed", prepare=no_locks_on_head,
)  # fmt: skip
def head_without_locks(one: Round) -> None:
    one.until_step(15)
    if "ANSWERS_NO_LOCKS" not in variables(one.supervisor):
        one.notes.append("the supervisor has locks")
    one.strike()
    second_is_refused(one)
    killed_and_attached(one)


def missing_lock_is_said(one: Round) -> Iterable[str]:
    files = [one.run_dir / "ranks" / "0.log", one.run_dir / telemetry.FILE]
    if not any("would not be noticed: " in path.read_text() for path in files):
        yield "the run does not say that its directory has no lock"


def no_locks_on_nodes(one: Round) -> None:
    for node in one.lab.nodes:
        set_at_login(node, one.answers.without_locks(one.directory))


@fault(
    "F41-node", "no locks in the run directory on the nodes (ENOLCK, simulated), and a"
    " rank is killed", "signal-9", prepare=no_locks_on_nodes, check=missing_lock_is_said,
)  # fmt: skip
def nodes_without_locks(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)
