"""The one pure function that changes the state, `fold`: no Textual, no clock, no IO."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from clusterctl.runs.journal import Begin, after_event, after_incident, node_of
from dashboards.alerts.engine import after
from dashboards.model.outliers import odd_gpus
from dashboards.model.ring_buffer import GPU_COLUMNS, NAN, Ring
from dashboards.model.samples import (
    EventSample,
    NodeDown,
    NodeSample,
    Restored,
    RunOpened,
    RunRead,
    RunReport,
    Sample,
    StepSample,
    Tick,
)
from dashboards.model.state import INTERRUPTED, NodeState, RunState, State, new_node
from dashboards.model.table import fleet_row
from dashboards.model.usage_totals import after_reading
from trainer.runlog import slow_ranks
from trainer.runlog.steps import after_record
from trainer.runlog.telemetry import Event
from trainer.runlog.validation import Point, is_of_checkpoint, is_superseded, point_of

RECENT_STEPS = 600
RECENT_EVENTS = 200
# The smoothed loss averages over this share of the run, within these numbers of steps: one number
# for all would be late in a short run and noisy in a long one.
SMOOTH_SHARE, SMOOTH_STEPS = 0.01, (5.0, 100.0)


def fold(state: State, samples: Iterable[Sample]) -> State:
    """The state after samples; copies the table of nodes once per batch, not per sample."""
    nodes: dict[str, NodeState] | None = None
    for sample in samples:
        if isinstance(sample, NodeSample | NodeDown):
            nodes = dict(state.nodes) if nodes is None else nodes
            before = nodes.get(sample.node) or new_node(sample.node, state.fleet.limit)
            nodes[sample.node] = _after_node(before, sample, state.history_step_s, state.interval_s)
            continue
        if isinstance(sample, Restored):
            state, nodes = replace(sample.state, source=state.source), None
            continue
        if nodes is not None:
            state, nodes = replace(state, nodes=nodes), None
        state = _after_other(state, sample)
    return state if nodes is None else replace(state, nodes=nodes)


def _after_node(
    node: NodeState, sample: NodeSample | NodeDown, step_s: float, interval_s: float
) -> NodeState:
    if isinstance(sample, NodeDown):
        return replace(node, down=sample)
    gpus = sample.gpus or ()
    seen = max(node.gpus_seen, 1 + max((gpu.index for gpu in gpus), default=-1))
    history, row_s = node.history, node.history_s
    rows = 1 if row_s is None else round((sample.at_s - row_s) / step_s)
    if rows > 0:
        history = _after_gap(history, rows).append(_row(sample, seen))
        row_s = _row_time(row_s, rows, sample.at_s, step_s, interval_s)
        if node.history_s is None and step_s > interval_s:
            # Rows of many nodes are spread over their step: not all of them in one tick.
            row_s -= step_s * (zlib.crc32(node.name.encode()) % 1024) / 1024
    return replace(
        node,
        sample=sample,
        down=None,
        usage=after_reading(node.usage, node.sample, sample, interval_s),
        gpus_seen=seen,
        history=history,
        history_s=row_s,
    )


def _after_gap(ring: Ring, rows: int) -> Ring:
    """With empty rows for the time without readings, all but the newest."""
    return ring.append_empty(min(rows, ring.limit) - 1)


def _row_time(
    before_s: float | None, rows: int, at_s: float, step_s: float, interval_s: float
) -> float:
    """The time of the newest row.

    Readings as far apart as rows keep their own times, else their jitter would add up to gaps;
    where there are several to a row, rows keep their step.
    """
    return at_s if before_s is None or step_s <= interval_s else before_s + rows * step_s


def _row(sample: NodeSample, gpus_seen: int) -> list[float | None]:
    """A row of a node's history, in the order of NODE_COLUMNS, then GPU_COLUMNS of each GPU."""
    by_index = {
        gpu.index: (gpu.power_w, gpu.util, gpu.memory, gpu.temperature_c, gpu.sm_mhz)
        for gpu in sample.gpus or ()
    }
    readings = [by_index.get(index, _NO_READING) for index in range(gpus_seen)]
    row = [sample.cpu, sample.memory, sample.load1, sample.network_mb_s]
    for column in zip(*readings, strict=True) if readings else [()] * len(GPU_COLUMNS):
        known = [value for value in column if value is not None]
        row.append(sum(known) / len(known) if known else None)
    for reading in readings:
        row += reading
    return row


_NO_READING: tuple[float | None, ...] = (None,) * len(GPU_COLUMNS)


def _after_other(state: State, sample: RunReport | Tick) -> State:
    if isinstance(sample, Tick):
        for part in tick_parts(sample):
            state = part(state)
        return state
    if isinstance(sample, RunOpened):
        run = RunState(sample.directory, sample.name, sample.nodes, sample.ranks)
        # Planned nodes fill the table only when no hostfile does: a hostfile is the user's choice.
        planned = {name: new_node(name, state.fleet.limit) for name in sample.nodes}
        return replace(state, run=run, nodes=state.nodes or planned)
    if state.run is None:
        return state  # a record without its run: feeds open runs first
    if isinstance(sample, RunRead):
        return replace(state, run=replace(state.run, unread=sample.why_not))
    if isinstance(sample, StepSample):
        return replace(state, run=_after_step(state.run, sample))
    return replace(state, run=_after_event(state.run, sample))


def _after_step(run: RunState, sample: StepSample) -> RunState:
    record = sample.record
    smooth, weight, loss = run.smooth, run.smooth_weight, NAN
    if run.last is not None and record.step <= run.last.step:
        # Of an attempt that is broken off: its losses after this step do not count any more.
        smooth = weight * run.curve.value_before(record.step, 2, smooth / weight if weight else NAN)
    if math.isfinite(record.loss):
        loss, (few, many) = record.loss, SMOOTH_STEPS
        keep = 1.0 - 1.0 / max(few, min(many, SMOOTH_SHARE * record.steps_total))
        # Shown divided by the weight, so that zero does not count in the first steps.
        smooth, weight = keep * smooth + (1 - keep) * loss, keep * weight + (1 - keep)
    # Steps that come again after a resume replace what the broken attempt wrote.
    recent = run.recent
    if recent and record.step <= recent[-1].step:
        recent = tuple(old for old in recent if old.step < record.step)
    return replace(
        run,
        last=record,
        last_s=sample.at_s,
        recent=(*recent, record)[-RECENT_STEPS:],
        curve=run.curve.add(record.step, loss, smooth / weight if weight else NAN, record.step_s),
        smooth=smooth,
        smooth_weight=weight,
        ended="",
        steps=after_record(run.steps, record),
    )


# What the trainer and the launcher call the end of a run, and a node's part in it.
_ENDINGS = dict.fromkeys(("done", "finished"), "finished") | {"stopped": "stopped"}
_ENDINGS |= dict.fromkeys(("failure", "failed", "error"), "failed")
_BEGINNINGS = ("plan", "start", "resume", "attempt", "restart")
_NODE_WORDS = {"rank": "running", "lost": "lost"}


def _after_event(run: RunState, sample: EventSample) -> RunState:
    event = sample.event
    if sample.source == "incidents":  # the journal's events tell people of it
        return replace(run, journal=after_incident(run.journal, event))
    run = _with_attempts(run, sample)
    ended = run.ended
    if event.name in ("end", "failure") and event.data.get("exit_code") == INTERRUPTED:
        ended = "stopped"
    elif event.name == "end":
        ended = "failed" if event.data.get("exit_code", 0) else "finished"
    elif event.name in _ENDINGS:
        ended = _ENDINGS[event.name]
    elif event.name in _BEGINNINGS:
        ended = ""
    states = run.node_states
    node, status = node_of(event), _NODE_WORDS.get(event.name)
    if event.name == "rank-ended":
        code = event.data.get("code")
        status = "ended" if code == 0 else "stopped" if code == INTERRUPTED else "failed"
    if node is not None and status is not None and states.get(node) not in ("lost", "failed"):
        states = {**states, node: status}
    events = run.events
    at = len(events)
    # Two files are read: keep them in the order of their own time.
    while at and events[at - 1].event.time_s > event.time_s > 0:
        at -= 1
    events = (*events[:at], sample, *events[at:])[-RECENT_EVENTS:]
    return replace(run, events=events, ended=ended, node_states=states)


def _validated(run: RunState, event: Event) -> Point | None:
    """The newest validation loss that counts, after an event of the telemetry."""
    point, known = point_of(event), run.validation
    if point is None or not is_of_checkpoint(event):
        return point or known
    # Beside the training they come in any order, also after a start that went back behind them.
    starts = [(one.after, one.began_s) for one in run.steps.starts if one.after is not None]
    if is_superseded(point, event.time_s, starts):
        return known
    return point if known is None or known.step < point.step else known


def _with_attempts(run: RunState, sample: EventSample) -> RunState:
    """With what an event says of starts and attempts; a new attempt may be on other nodes."""
    event = sample.event
    if sample.source == "telemetry":
        slow = event if event.name == slow_ranks.NAME else run.slow
        slow = None if event.name == "start" else slow
        known = _validated(run, event)
        if event.name == "start" and known is not None and known.step > (event.step or 0):
            known = None  # the run goes on from before it
        steps = after_record(run.steps, event)
        return replace(run, steps=steps, slow=slow, validation=known)
    journal = after_event(run.journal, event)
    if journal is run.journal:
        return run
    run = replace(run, journal=journal)
    begin = journal.begins[-1] if event.name == "attempt" and journal.begins else None
    if begin is None or begin.time_s != event.time_s or not begin.nodes:
        return run
    ranks = run.ranks if begin.nodes == run.planned else _ranks(run, begin)
    return replace(run, planned=begin.nodes, ranks=ranks, node_states={})


def _ranks(run: RunState, begin: Begin) -> tuple[int, ...]:
    """Of each node of an attempt: as the plan has them, on spares an equal share of the rest."""
    known = dict(zip(run.planned, run.ranks, strict=False))
    new = [name for name in begin.nodes if name not in known]
    left = (begin.world or 0) - sum(known.get(name, 0) for name in begin.nodes)
    if (left if not new else left % len(new)) or left < 0:
        return ()  # the plan says something else: better no place than a wrong one
    each = left // len(new) if new else 0
    return tuple(known.get(name, each) for name in begin.nodes)


def tick_parts(tick: Tick) -> tuple[Callable[[State], State], ...]:
    """The steps of a tick, in order; the screens answer keys between them."""

    def with_time(state: State) -> State:
        state = replace(state, now_s=tick.now_s)
        return replace(state, odd=odd_gpus(state))

    return with_time, lambda it: replace(it, alerts=after(it.alerts, it)), _with_fleet_row


def _with_fleet_row(state: State) -> State:
    now_s, step_s, before_s = state.now_s, state.history_step_s, state.fleet_s
    rows = 1 if before_s is None else round((now_s - before_s) / step_s)
    if rows <= 0:
        return state
    row_s = _row_time(before_s, rows, now_s, step_s, state.interval_s)
    fleet = _after_gap(state.fleet, rows).append(fleet_row(state))
    return replace(state, fleet=fleet, fleet_s=row_s)
