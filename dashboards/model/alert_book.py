"""Alerts as data, which the state holds: rules, what they found, alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.node_name import NodeName
from dashboards.model.thresholds import DEFAULT, Limits

WARN, FAIL = "warn", "fail"
SEVERITIES = (WARN, FAIL)

Unit = tuple[str, str]
"""(node, its part): "GPU 3", "/data", "mlx5_1/1", "" itself; ("", name) the run or this machine."""


@dataclass(frozen=True, slots=True)
class Breach:
    """Something over its limit now."""

    unit: Unit
    text: str  # evidence: what was measured, and against what
    severity: str = ""  # "" and None: as the rule has it
    after_s: float | None = None
    clear_s: float | None = None
    starts: bool = True  # False: keeps an alert that is there, makes none


@dataclass(frozen=True, slots=True)
class RuleMemory:
    """What rules must know of earlier ticks."""

    links: Mapping[Unit, int] = field(default_factory=dict)  # how often it was lost
    were_up: frozenset[Unit] = frozenset()  # links that were up in an earlier tick
    were_busy: frozenset[Unit] = frozenset()  # GPUs that computed with the others then
    # (time, used bytes) of each file system, oldest first, at least some seconds apart.
    disks: Mapping[Unit, tuple[tuple[float, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """`find` gives what is over its limit; `known` whether any other unit could be read.

    A unit that is neither stays as it was: a silent node neither makes nor ends an alert.
    """

    id: str  # subject.name, stable: users silence by it
    severity: str
    meaning: str  # one sentence: what it is and why it matters
    find: Callable[[Any], Iterable[Breach]]
    known: Callable[[Any, Unit], bool]
    after_s: float  # over its limit this long makes an alert
    clear_s: float  # under it this long ends it
    command: str  # what to type next: {hosts} hostfile, {nodes} -w SET, {run} directory, {remote}
    threshold: str  # in words, for the documentation
    # Alerts of these ids about the same unit say it already; what this rule sees keeps them open.
    suppressed_by: tuple[str, ...] = ()
    could_not_ask: bool = False  # no fault was seen; something could not be read
    at_once: bool = True  # few readings are enough with --once
    remote: str = ""  # what {remote} of the command runs on the nodes


@dataclass(frozen=True, slots=True)
class Track:
    """One rule and one unit, from the first time it was seen over the limit to its end."""

    breach: Breach  # the last one
    severity: str  # the worst so far
    first_s: float  # head's clock
    last_s: float  # when it was last seen over the limit
    over_s: float = 0.0  # for so long it was seen over
    under_s: float = 0.0  # and for so long under, since then
    fired_s: float | None = None  # when it became an alert; None: not yet
    seen: int = 1  # at the last context: 1 over, -1 under, 0 not known
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """One line of the screen. Times are the head's clock; `nodes` in the hostfile's order."""

    id: str
    severity: str  # "warn" or "fail"
    subject: str  # node set and part: `ml-64-node-004 GPU 3`, or the run's name
    nodes: tuple[NodeName, ...]  # () for what belongs to no node
    text: str  # evidence: what was measured, against what
    command: str  # what to type next
    first_s: float
    last_s: float
    over_s: float | None = None
    acknowledged: bool = False
    muted_until_s: float | None = None
    cleared_s: float | None = None  # set in the history
    units: tuple[Unit, ...] = ()  # (node, part) of all that it folds
    is_known: bool = True  # False: nothing can be seen of any of them just now
    could_not_ask: bool = False  # no fault was seen; something could not be read

    @property
    def key(self) -> tuple[str, str]:
        return self.id, self.subject


Key = tuple[str, Unit]  # of a rule and what it sees; an Alert folds several of them


@dataclass(frozen=True, slots=True)
class AlertBook:
    """All that is known of alerts. `active` has the worst first, `history` the newest last."""

    active: tuple[Alert, ...] = ()
    history: tuple[Alert, ...] = ()
    tracks: Mapping[Key, Track] = field(default_factory=dict)
    mutes: Mapping[Key, float] = field(default_factory=dict)
    memory: RuleMemory = field(default_factory=RuleMemory)
    now_s: float | None = None
    limits: Limits = DEFAULT
    rules: tuple[Rule, ...] | None = None  # None: all
    hurry: bool = False  # for one context: a few readings are enough
