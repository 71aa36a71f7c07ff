"""What the looks at processes say of each: goes on, is halted, saves, is not there."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.stacks import wait_sites as kinds
from clusterctl.stacks.model import Picture, Proc
from clusterctl.stacks.progress import GONE, MOVING, STANDS, STUCK


def has_moved(trainers: Sequence[Proc]) -> bool:
    """Whether every rank went on between the samples: by its heartbeats, else by its stacks."""
    return bool(trainers) and all(has_gone_on(p) for p in trainers)


def has_gone_on(proc: Proc) -> bool:
    """By its heartbeats where it writes them: another step or phase, or one begun anew."""
    if len(proc.beats) > 1:
        first, last = proc.beats[0], proc.beats[-1]
        if first["step"] != last["step"]:
            return True
        # Within a step: another phase, or the same one begun anew.
        began_anew = last["age_s"] < proc.seconds - 0.01
        return bool(began_anew or first["phase"] != last["phase"])
    return proc.progress == MOVING


def is_halted(proc: Proc) -> bool:
    """Stopped, frozen, or asleep in the kernel through all samples."""
    if proc.role in ("tracker", "shell", "logger", "compiler"):
        return False
    if proc.state in ("T", "t") or proc.is_frozen:
        return True
    return proc.state == "D" and proc.progress == STUCK


def saves(proc: Proc) -> bool:
    """By its stack, or by what it says itself."""
    return proc.kind == kinds.CHECKPOINT or bool(
        proc.beat and proc.beat["phase"] == "checkpoint" and not proc.waits_for_peers
    )


MOST = 0.75  # of the ranks, in one place: then that place is where they wait


def who_waits(picture: Picture, trainers: Sequence[Proc], missing: Sequence[int]) -> list[Proc]:
    """Ranks that wait for peers: by their stacks, or because nearly all stand in one place.

    With NCCL the CPU runs on until the launch queue is full, and stops, often spinning, in whatever
    operation comes then. So where some ranks are missing, halted, save or wait for data, a crowd in one
    place waits for them.
    """
    sure = [p for p in trainers if p.waits_for_peers and p.progress in STANDS]
    known = {id(p) for p in sure}
    rest = [p for p in trainers if id(p) not in known]
    telling = {id(p) for p in rest if p.kind == kinds.WAIT_DATA or saves(p) or is_halted(p)}
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


def missing_ranks(picture: Picture) -> list[int]:
    """Ranks of which no trainer is alive; only where the world's size is known."""
    if not picture.world:
        return []
    seen = {p.rank for p in picture.trainers if p.progress != GONE}
    return [rank for rank in range(picture.world) if rank not in seen]
