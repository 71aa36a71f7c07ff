"""Which nodes the next attempt of a run uses: the same, spares for lost ones, or fewer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.units import counted
from clusterctl.nodes import fold

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes that a run may use: those it began with, in their order, and its spares."""

    nodes: Names
    spares: Names = ()
    min_nodes: int | None = None  # None: as many as it began with

    @property
    def least(self) -> int:
        return self.min_nodes if self.min_nodes is not None else len(self.nodes)


@dataclass(frozen=True, slots=True)
class Choice:
    """`nodes` is empty where too few are left; `text` says so, or who takes whose place."""

    nodes: Names
    text: str = ""


def choose(pool: Pool, before: Sequence[str], unfit: Mapping[str, str]) -> Choice:
    """The nodes of the next attempt.

    `before` are those of the last attempt, `unfit` nodes that may not be used, and why. A node
    keeps its place, a spare takes the place of the node that it stands for, and nodes of the
    beginning come back where places are empty: ranks move as little as possible.
    """
    fit = [name for name in (*pool.nodes, *pool.spares) if name not in unfit]
    kept = [name for name in before if name not in unfit]
    free = [name for name in fit if name not in kept]
    places: list[str] = []
    swaps: list[str] = []
    missing: list[str] = []
    for name in before:
        if name not in unfit:
            places.append(name)
        elif free:
            stand_in = free.pop(0)
            places.append(stand_in)
            swaps.append(f"{stand_in} instead of {name} ({unfit[name]})")
        else:
            missing.append(name)
    while len(places) < len(pool.nodes) and free:
        back = free.pop(0)
        places.append(back)
        swaps.append(f"{back} again" if back in pool.nodes else f"{back} as well")
    if len(places) < pool.least:
        names = [name for name in (*pool.nodes, *pool.spares) if name in unfit]
        whys = "; ".join(f"{name}: {unfit[name]}" for name in names[:3])
        more = " …" if len(names) > 3 else ""
        has = f"{counted(len(places), 'node')} can be used" if places else "no node can be used"
        return Choice((), f"{has} of the {pool.least} that are needed ({whys}{more})")
    if missing:
        swaps.append(f"without {fold(missing)} ({unfit[missing[0]]})")
    return Choice(tuple(places), ", ".join(swaps))
