"""What the screens show. Unknown stays None or NaN; a value that was not read is never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl.node_name import NodeName
from clusterctl.runs.journal import Journal
from dashboards.model.alert_book import AlertBook
from dashboards.model.ring_buffer import FLEET_COLUMNS, NODE_COLUMNS, Ring, Thin
from dashboards.model.samples import EventSample, Feed, NodeDown, NodeSample
from dashboards.model.usage_totals import NodeUsage
from trainer.runlog.steps import Steps
from trainer.runlog.telemetry import Event, StepRecord
from trainer.runlog.validation import Point

HISTORY_S = 3600.0
STALE_INTERVALS = 3
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class NodeState:
    """The last reading of a node, and its last hour."""

    name: NodeName
    sample: NodeSample | None = None
    down: NodeDown | None = None  # set until it answers again
    history: Ring = field(default=Ring(len(NODE_COLUMNS)))
    history_s: float | None = None  # time of the newest row
    usage: NodeUsage = field(default=NodeUsage())  # of its GPUs, by user and job
    gpus_seen: int = 0  # most GPUs it ever showed: fewer now means that some are missing

    def age_s(self, now_s: float) -> float | None:
        """Seconds since its last reading; None when it never gave one."""
        return None if self.sample is None else now_s - self.sample.at_s


@dataclass(frozen=True, slots=True)
class RunState:
    """One training as its run directory has it."""

    directory: str
    name: str
    planned: tuple[NodeName, ...] = ()  # nodes in the order of ranks
    ranks: tuple[int, ...] = ()  # of each planned node
    last: StepRecord | None = None
    last_s: float | None = None  # head's clock when `last` was seen
    recent: tuple[StepRecord, ...] = ()
    curve: Thin = field(default=Thin(4))  # step, loss, smoothed loss, step_s
    smooth: float = 0.0
    smooth_weight: float = 0.0
    events: tuple[EventSample, ...] = ()
    node_states: Mapping[NodeName, str] = field(default_factory=dict)
    ended: str = ""  # "", "finished", "stopped" or "failed"
    validation: Point | None = None  # the newest measurement that counts
    slow: Event | None = None  # the newest word of the trainer on slow ranks, in this attempt
    steps: Steps = field(default_factory=Steps)  # that count, and what was lost between them
    journal: Journal = field(default_factory=Journal)  # of attempts
    unread: str = ""  # why what is known is not the present: all the rest is of earlier

    def __hash__(self) -> int:
        """Of few fields, as it is asked for at every tick: equal runs have the same."""
        return hash((self.directory, self.last_s, len(self.events), self.journal.restart_count))

    def place_of(self, rank: int) -> tuple[str, int] | None:
        """(node, local rank) of a rank; None where no plan has it."""
        for name, count in zip(self.planned, self.ranks, strict=False):
            if rank < count:
                return name, rank
            rank -= count
        return None

    def ranks_of(self, node: str) -> range:
        """The ranks that the launcher planned for a node."""
        first = 0
        for name, count in zip(self.planned, self.ranks, strict=False):
            if name == node:
                return range(first, first + count)
            first += count
        return range(0)


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is drawn."""

    now_s: float
    interval_s: float = 1.0
    source: str = ""  # where the readings come from, for the header
    nodes: Mapping[NodeName, NodeState] = field(default_factory=dict)  # in the hostfile's order
    run: RunState | None = None
    fleet: Ring = field(default=Ring(len(FLEET_COLUMNS)))
    fleet_s: float | None = None
    history_step_s: float = 1.0  # seconds between rows of every history
    odd: Mapping[tuple[NodeName, int], str] = field(default_factory=dict)  # (node, GPU) -> why
    alerts: AlertBook = field(default_factory=AlertBook)
    watches: bool = True  # False: nodes are known from the run's plan only and give no readings

    @property
    def oldest_s(self) -> float:
        """Readings from before then are stale."""
        return self.now_s - STALE_INTERVALS * self.interval_s

    @property
    def has_gpus(self) -> bool:
        return any(node.gpus_seen for node in self.nodes.values())

    def live(self) -> list[NodeSample]:
        """Readings that are good now: of nodes that are neither silent nor stale."""
        oldest_s = self.oldest_s
        samples = (node.sample for node in self.nodes.values() if node.down is None)
        return [sample for sample in samples if sample is not None and sample.at_s >= oldest_s]

    def count_silent(self) -> int:
        """Nodes that are watched and give no readings now."""
        return len(self.nodes) - len(self.live()) if self.watches else 0


def new_node(name: str, limit: int) -> NodeState:
    """A node without readings, with a history of `limit` rows."""
    return NodeState(name, history=Ring(len(NODE_COLUMNS), limit))


def initial_state(
    nodes: Sequence[str], *, now_s: float, interval_s: float = 1.0, source: str = ""
) -> State:
    """Nodes without readings.

    Above 100 nodes history rows lie further apart, so that an hour of 1,000 nodes of 8 GPUs stays
    below 60 MB.
    """
    step = max(1.0, interval_s) * (1 if len(nodes) <= 100 else 6)
    limit = math.ceil(HISTORY_S / step)
    return State(
        now_s=now_s,
        interval_s=interval_s,
        source=source,
        nodes={name: new_node(name, limit) for name in nodes},
        fleet=Ring(len(FLEET_COLUMNS), limit),
        history_step_s=step,
        watches=bool(nodes),
    )


def state_of(feed: Feed, interval_s: float) -> State:
    """The state before the first reading of a feed."""
    return initial_state(feed.nodes, now_s=feed.now(), interval_s=interval_s, source=feed.source)
