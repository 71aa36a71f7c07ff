"""What the samples show of each process: it moves, is halted, saves, is missing."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.stacks.model import JobSnapshot, Proc
from clusterctl.stacks.progress import STANDS, Progress
from clusterctl.stacks.wait_sites import Kind


def has_moved(trainers: Sequence[Proc]) -> bool:
    """Whether every rank went on between the samples: by its heartbeats, else by its stacks."""
    return bool(trainers) and all(has_gone_on(p) for p in trainers)


def has_gone_on(proc: Proc) -> bool:
    """By its heartbeats where it writes them: another step or phase, or the same one again."""
    if len(proc.beats) < 2:
        return proc.progress == Progress.MOVING
    first, last = proc.beats[0], proc.beats[-1]
    changed = any(first[key] != last[key] for key in ("step", "phase"))
    return bool(changed or last["age_s"] < proc.seconds - 0.01)  # the same phase, started again


def is_halted(proc: Proc) -> bool:
    """Stopped, frozen, or asleep in the kernel through all samples."""
    if proc.role in ("tracker", "shell", "logger", "compiler"):
        return False
    sleeps = proc.state == "D" and proc.progress == Progress.STUCK
    return sleeps or proc.state in ("T", "t") or proc.is_frozen


def saves(proc: Proc) -> bool:
    """By its stack or its heartbeat."""
    reported = proc.beat and proc.beat["phase"] == "checkpoint" and not proc.waits_for_peers
    return proc.kind == Kind.CHECKPOINT or bool(reported)


MOST = 0.75  # share of the ranks in one place from which on they wait there


def who_waits(
    snapshot: JobSnapshot, trainers: Sequence[Proc], missing: Sequence[int]
) -> list[Proc]:
    """Ranks that wait for peers: by their stacks, or because nearly all are in one place.

    With NCCL the CPU runs until the launch queue is full and then stops, often spinning, in any
    operation. So where some ranks are missing, halted, saving or waiting for data, a crowd in one
    place waits for them.
    """
    sure = [p for p in trainers if p.waits_for_peers and p.progress in STANDS]
    known = {id(p) for p in sure}
    rest = [p for p in trainers if id(p) not in known]
    telling = {id(p) for p in rest if p.kind == Kind.WAIT_DATA or saves(p) or is_halted(p)}
    if not telling and not missing:
        return sure
    places: dict[object, list[Proc]] = {}
    for proc in rest:
        if id(proc) not in telling and proc.progress in STANDS and proc.stack.frames:
            places.setdefault(proc.stack.coarse, []).append(proc)
    crowd = max(places.values(), key=len, default=[])
    everybody = len(trainers) + len(missing)
    is_most = len(crowd) >= MOST * (len(rest) + len(missing)) and 2 * len(crowd) >= everybody
    return sure + crowd if is_most else sure


def missing_ranks(snapshot: JobSnapshot) -> list[int]:
    """Ranks of which no trainer is alive; only where the world's size is known."""
    if not snapshot.world:
        return []
    seen = {p.rank for p in snapshot.trainers if p.progress != Progress.GONE}
    return [rank for rank in range(snapshot.world) if rank not in seen]
