"""Faults of ranks and of the processes that they start."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.clusterctl.launch.harness import command_line, tagged, variables
from tests.faults.fault import fault
from tests.faults.rig import Round, kill

HANG_S = 8.0 * 1.5 + 8.0  # the limit that launches are given, and the time to take stacks
LOOKED_S = HANG_S + 20.0


@fault("F1", "rank killed", "signal-9", detected_s=2.0)
def killed_rank(one: Round) -> None:
    one.until_step(23)
    victim = random.Random(one.seed).choice(sorted(one.ranks))
    one.strike()
    kill([one.ranks[victim]], signal.SIGKILL)


def decoders(one: Round, rank: int) -> list[int]:
    """The processes that read clips for a rank."""
    return [
        pid
        for pid in tagged(one.run_id)
        if variables(pid).get("RANK") == str(rank) and b"decode_process" in command_line(pid)
    ]


@fault("F2", "loader process killed")
def killed_loader(one: Round) -> None:
    one.until_step(23)
    found = decoders(one, 1)
    one.strike()
    kill(found, signal.SIGKILL)
    if not found:
        one.notes.append("rank 1 had no process that reads clips")


def names_rank(number: int, one: Round) -> Iterable[str]:
    incidents = one.incidents()
    if incidents and incidents[0]["rank"] != number:
        yield f"the incident names rank {incidents[0]['rank']}, not {number}: {incidents[0]['text']}"


def names_rank_2(one: Round) -> Iterable[str]:
    return names_rank(2, one)


@fault(
    "F4", "a rank calls another collective", r"hang\S*",
    detected_s=HANG_S, recovered_s=LOOKED_S, check=names_rank_2,
)  # fmt: skip
def extra_collective(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(2, "barrier")


@fault(
    "F5", "rank spins", r"hang\S*",
    detected_s=HANG_S, recovered_s=LOOKED_S, check=names_rank_2,
)  # fmt: skip
def spinning_rank(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(2, "spin")


@fault(
    "F5-gil", "rank holds the GIL in C", r"hang\S*",
    detected_s=HANG_S, recovered_s=LOOKED_S, check=names_rank_2,
)  # fmt: skip
def rank_holds_gil(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(2, "gil")


MEMORY = Path("/sys/fs/cgroup/memory")


def count_memory(one: Round) -> None:
    """All that the node of rank 2 runs is counted together, from the begin on."""
    node = one.lab.nodes[2 // one.setting.ranks]
    group = MEMORY / f"faults-{os.getpid()}-{one.seed}"
    group.mkdir()

    def move(to: Path) -> None:
        for pid in node.processes():
            with contextlib.suppress(ProcessLookupError):
                (to / "cgroup.procs").write_text(str(pid))

    def forget() -> None:
        move(MEMORY)
        with contextlib.suppress(OSError):
            group.rmdir()

    move(group)
    one.finally_(forget)


@fault(
    "F16", "host out of memory", "oom-kernel",
    detected_s=15.0, recovered_s=35.0, prepare=count_memory,
)  # fmt: skip
def out_of_memory(one: Round) -> None:
    one.until_step(23)
    group = MEMORY / f"faults-{os.getpid()}-{one.seed}"
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + (400 << 20)))
    one.strike()
    one.order(2, "memory")


@fault("F17", "GPU out of memory, raised as torch does", "cuda-oom", detected_s=5.0)
def out_of_gpu_memory(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(1, "cuda-oom")


@fault(
    "F28", "rank stopped (state T)", r"hang\S*",
    detected_s=HANG_S, recovered_s=LOOKED_S, check=names_rank_2,
)  # fmt: skip
def stopped_rank(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.ranks[2]], signal.SIGSTOP)


def first_cause_is_said(one: Round) -> Iterable[str]:
    if not re.search("planned by the campaign", one.said()):
        yield "the last root cause is not shown"
    if len(one.events("attempt")) > 3:
        yield f"{len(one.events('attempt'))} attempts"


@fault(
    "F31", "crash loop", "worker-exception(, worker-exception)*",
    exit_code=93, is_same=False, check=first_cause_is_said,
)  # fmt: skip
def crash_loop(one: Round) -> None:
    one.until_step(3)
    one.strike()
    one.order(1, "always-error")


def step_was_skipped(one: Round) -> Iterable[str]:
    skipped = [record.step for record in one.steps() if record.skipped]
    if len(skipped) != 1:
        yield f"{len(skipped)} steps were skipped"


@fault("F32", "loss is not a number on one rank", is_same=False, check=step_was_skipped)
def loss_is_no_number(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(1, "nan-loss")


@fault(
    "F32-often",
    "loss is not a number in any step",
    r"diverged\S*(, diverged\S*)*",
    exit_code=93,
    is_same=False,
)
def loss_stays_no_number(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(1, "always-nan-loss")


@fault("F30", "a rank floods its log")
def log_flood(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.order(1, "flood")
