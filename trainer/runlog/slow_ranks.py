"""The event `slow-ranks`: which ranks the others wait for, how much, where and why. Pure.

Rank 0 writes one when a rank becomes slow, is slow in another phase, or is slow no more. It holds
until the next one, or the next start. `trainer.slow_ranks.judge` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainer.runlog import units
from trainer.runlog.json_file import number, whole
from trainer.runlog.slow_reasons import Reason
from trainer.runlog.telemetry import Event

NAME = "slow-ranks"
MOST = 64  # of one event that are read


@dataclass(frozen=True, slots=True)
class SlowRank:
    """One rank; or all of them, against their own past, with `rank` None."""

    rank: int | None
    share: float  # of the work that is compared, above the others
    seconds: float  # of a step, the same
    phase: str  # where most of it is
    also: tuple[str, ...]  # other phases with a part of it
    since_step: int
    host: str = ""  # as the node calls itself; "" before it was asked
    reasons: tuple[Reason, ...] = ()
    not_compared: tuple[str, ...] = ()  # kinds of readings that were missing

    @property
    def size(self) -> str:
        """How much, in which phase."""
        than = "before" if self.rank is None else "the others"
        much = f"{self.share:.1%} slower than {than}"
        if self.share >= 1:
            much = f"{1 + self.share:.1f} times as slow as {than}"
        lost = f"{units.measured(self.seconds)} of a step"
        where = " and ".join((self.phase, *self.also))
        return f"{much}, {lost}, most of it in {where}"

    @property
    def why(self) -> str:
        """The reasons, or that none is known."""
        if self.reasons:
            return ", ".join(reason.text for reason in self.reasons)
        if self.rank is None:
            return "the cause is common to them"
        missing = f" (not compared: {', '.join(self.not_compared)})" if self.not_compared else ""
        return f"reason unknown: nothing that was read differs from the others{missing}"

    def sentence(self, where: str = "") -> str:
        """For people; `where` is its place as the reader calls it."""
        if self.rank is None:
            return f"all ranks are {self.size}: {self.why}"
        where = where or self.host
        return f"rank {self.rank}{f' on {where}' if where else ''} is {self.size}: {self.why}"


def slow_ranks(event: Event) -> tuple[SlowRank, ...]:
    """Those that are slow from this event on; what is not as it should be is left out."""
    entries = event.data.get("slow") if event.name == NAME else None
    found = (_slow_rank(one) for one in (entries if isinstance(entries, list) else [])[:MOST])
    return tuple(one for one in found if one is not None)


def _slow_rank(entry: Any) -> SlowRank | None:
    if not isinstance(entry, Mapping):
        return None
    rank, since = whole(entry.get("rank"), 0), whole(entry.get("since_step"))
    share, seconds = (number(entry.get(name), -1e9, 1e9) for name in ("share", "seconds"))
    if since is None or share is None or seconds is None or rank != entry.get("rank"):
        return None
    return SlowRank(
        rank,
        share,
        seconds,
        str(entry.get("phase"))[:40],
        _words(entry.get("also")),
        since,
        str(entry.get("host") or "")[:256],
        tuple(_reasons(entry.get("reasons"))),
        _words(entry.get("not_compared")),
    )


def _words(entries: Any) -> tuple[str, ...]:
    found = entries if isinstance(entries, list | tuple) else ()
    return tuple(str(one)[:40] for one in found[:20])


def _reasons(entries: Any) -> Iterable[Reason]:
    names = [field.name for field in fields(Reason)]
    for entry in (entries if isinstance(entries, list) else [])[:20]:
        if isinstance(entry, Mapping) and all(name in entry for name in names):
            own, others = entry["own"], entry["others"]
            own = own if type(own) in (int, float) else str(own)[:256]
            others = others if type(others) in (int, float) else None
            yield Reason(str(entry["name"])[:40], str(entry["text"])[:500], own, others)


@dataclass(frozen=True, slots=True)
class Spell:
    """A rank that was slow, from its first step as such to the one at which that was over."""

    slow: SlowRank
    until_step: int | None = None  # None: it is slow


def after(spells: tuple[Spell, ...], event: Event) -> tuple[Spell, ...]:
    """The newest MOST spells after an event of the telemetry. A start ends all: the ranks of the
    next attempt may be elsewhere."""
    if event.name not in (NAME, "start"):
        return spells
    now = {one.rank: one for one in slow_ranks(event)}
    kept = []
    for spell in spells:
        if spell.until_step is not None:
            kept.append(spell)
        elif (new := now.pop(spell.slow.rank, None)) is not None:
            kept.append(Spell(new))
        else:
            kept.append(Spell(spell.slow, event.step or spell.slow.since_step))
    return (*kept, *map(Spell, now.values()))[-MOST:]
