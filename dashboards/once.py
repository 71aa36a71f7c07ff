"""One reading of everything as text or JSON, without Textual: for pipes, scripts and cron.

What nodes and runs say is made one printable line here: `Output` would keep its line ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checks.units import counted
from clusterctl import nodes
from clusterctl.output import Cell, Output
from dashboards.feeds.replay import Player
from dashboards.model import table, units
from dashboards.model.run_progress import Figures, accounted, figures, in_words, one_line
from dashboards.model.samples import Feed, Tick
from dashboards.model.state import NodeState, RunState, State, state_of
from dashboards.model.usage import Usage, gpu_count, node_totals, usage
from dashboards.model.usage_totals import Totals
from dashboards.reduce import fold
from trainer.runlog.output import printable

MARKS = ("", table.ALARM, table.STALE, table.UNKNOWN, table.MISSING)
STATES = dict(zip(MARKS, ("ok", "alarm", "stale", "unknown", "missing"), strict=True))
POLL_S = 0.05
WAYS = ("job", "user")  # of `usage` in JSON; nodes have their own energy


def collect(feed: Feed, *, interval_s: float, patience_s: float) -> State:
    """Run a feed until every source has answered once, or for `patience_s` and while it reads; a
    replay to its end."""
    feed.start()
    try:
        if isinstance(feed, Player):
            feed.seek_end()
        state = state_of(feed, interval_s)
        deadline = time.monotonic() + patience_s
        while True:
            # Asked before draining, in this order: what settles it is then among the samples.
            reads, settled = feed.reads(), feed.settled()
            state = fold(state, [*feed.drain(), Tick(feed.now())])
            if settled or (time.monotonic() > deadline and not reads):
                return state
            time.sleep(POLL_S)
    finally:
        feed.close()


def exit_code(state: State) -> int:
    """1 something is wrong, 3 something is unknown and nothing is worse, 0 all is well."""
    marks = {table.node_mark(node, state)[0] for node in state.nodes.values()}
    run = figures(state.run, state.now_s).status if state.run else ""
    if marks & {table.ALARM, table.MISSING} or run in ("failed", "stalled"):
        return 1
    return 3 if marks & {table.UNKNOWN, table.STALE} or run == "unknown" else 0


def write(state: State, output: Output) -> None:
    """Tables for people on stdout; -q leaves the verdict."""
    if not output.quiet:
        if state.watches:
            _write_nodes(state, output)
            _write_usage(state, output)
        if state.run is not None:
            _write_run(state.run, state, output)
    output.line(verdict(state))


def _write_nodes(state: State, output: Output) -> None:
    gpu_columns = ["GPUS", "POWER", "UTIL", "GPU MEM", "TEMP", "SM CLOCK"] if state.has_gpus else []
    numbers = [*gpu_columns, "CPU", "LOAD", "MEM", "NET"]
    rows: list[list[str | Cell]] = []
    for node in state.nodes.values():
        mark, why = table.node_mark(node, state)
        style = {"": "good", table.STALE: "warn", table.UNKNOWN: "warn"}.get(mark, "bad")
        row: list[str | Cell] = [node.name, Cell(f"{mark} {why}" if mark else "ok", style)]
        sample = None if node.down else node.sample
        if sample is None:
            rows.append(row + ["-"] * len(numbers))
            continue
        if gpu_columns:
            gpus = node.gpus_seen - len(table.missing(node))
            row.append("-" if sample.gpus is None else str(gpus))
            row += [metric.say(table.node_value(sample, metric)) for metric in table.METRICS]
        memory = units.part(sample.memory_used_bytes, sample.memory_total_bytes)
        row += [units.percent(sample.cpu), units.number(sample.load1, 2), memory]
        rows.append([*row, units.rate(sample.network_bytes_s)])
    output.table(["NODE", "STATE", *numbers], rows, right=numbers)
    for node in state.nodes.values():
        if node.down is not None:
            output.warn(printable(f"{node.name}  {node.down.phase}  {node.down.message}"), "warn")
        elif node.sample is not None and node.sample.gpus is None:
            output.warn(printable(f"{node.name}  {node.sample.gpu_error}"), "warn")
    for (name, index), reason in state.odd.items():
        output.line(printable(f"{name} GPU {index}: {reason}"), "bad")


def _write_usage(state: State, output: Output) -> None:
    """GPUs by user and job; energy needs two readings, so that only a replay has it here."""
    if not state.has_gpus:
        return
    numbers = ["NODES", "GPUS", "UTIL", "GPU MEM", "POWER", "IDLE"]
    rows: list[list[str | Cell]] = []
    for one in usage(state, "job"):
        row: list[str | Cell] = [printable(one.user), printable(one.job) or "-"]
        row += [str(len(one.nodes)), gpu_count(one.gpus), units.percent(one.util)]
        row += [units.size(one.memory_bytes), units.power(one.power_w), gpu_count(one.idle)]
        rows.append(row)
    if rows:
        output.line("")
        output.table(["USER", "JOB", *numbers], rows, right=numbers)


def _write_run(run: RunState, state: State, output: Output) -> None:
    now = figures(run, state.now_s)
    style = "bad" if now.status in ("failed", "stalled") else "good"
    style = "warn" if now.why_unknown else style
    output.line("")
    output.line(printable(f"run {run.name}: {_status(now)}"), style)
    if run.last is not None:
        last, age_s = run.last, state.now_s - (run.last_s or state.now_s)
        eta = f", ETA {units.duration(now.eta_s)}" if now.eta_s is not None else ""
        output.line(f"  step {now.step:,}/{now.steps_total:,}, {units.ago(age_s)}{eta}")
        output.line(
            f"  loss {units.number(now.smooth_loss)} smoothed, {units.number(last.loss)} last, "
            f"grad norm {units.number(last.grad_norm)}, lr {units.number(last.lr, 2)}"
        )
        if run.validation is not None:
            output.line(f"  validation loss {in_words(run.validation)}")
        output.line(
            f"  {units.measured(now.step_s)} a step (p99 {units.measured(now.p99_s)}), "
            f"{units.number(now.clips_per_s)} clips/s, ranks idle {units.percent(now.idle_share)}"
        )
        if now.phases:
            parts = ", ".join(f"{name} {units.measured(seconds)}" for name, seconds in now.phases)
            output.line(printable(f"  {parts}"))
    for line in attempt_lines(now):
        output.line(printable(f"  {line}"))
    for sample in run.events[-5:]:
        event = sample.event
        at = time.strftime("%H:%M:%S", time.localtime(event.time_s)) if event.time_s else "-"
        output.line(printable(f"  {at}  {event.name}  {one_line(event)}").rstrip())


def _status(now: Figures) -> str:
    return f"unknown ({now.why_unknown})" if now.why_unknown else now.status


def attempt_lines(now: Figures) -> list[str]:
    """Attempts, nodes and lost time; none of one attempt without a launcher."""
    if now.attempt is None or (now.spares is None and not now.restarts):
        return []
    parts = [f"attempt {now.attempt}, {counted(now.restarts, 'restart')}"]
    if now.spares is not None:
        parts.append(f"{counted(now.spares, 'spare')} left")
    if now.excluded:
        parts.append(f"excluded: {nodes.fold(now.excluded)}")
    lines = [", ".join(parts)]
    if now.ettr is not None:
        lost = ", ".join(f"{cause} {units.duration(seconds)}" for cause, seconds in now.lost_s)
        lines.append(
            f"effective training time (ETTR) {now.ettr:.1%}" + (f", lost: {lost}" if lost else "")
        )
    return lines


def verdict(state: State) -> str:
    parts = []
    if state.watches:
        summary = table.summarise(state)
        parts.append(f"{summary.answering} of {summary.nodes} nodes answer")
        if summary.gpus_seen:
            parts.append(f"{summary.gpus}/{summary.gpus_seen} GPUs, {summary.odd} odd")
    if state.run is not None:
        now = figures(state.run, state.now_s)
        parts.append(printable(f"run {state.run.name} {_status(now)} at step {now.step:,}"))
    return "; ".join(parts) or "nothing to show: no hostfile and no run"


def as_json(state: State) -> dict[str, Any]:
    """The state with units in the names; what is not known is null."""
    odd = [{"node": name, "gpu": gpu, "reason": why} for (name, gpu), why in state.odd.items()]
    document = {
        "time_s": state.now_s,
        "source": state.source,
        "nodes": [_node_json(node, state) for node in state.nodes.values()],
        "run": _run_json(state.run, state) if state.run else None,
        "usage": {way: [_usage_json(one, state) for one in usage(state, way)] for way in WAYS},
        "odd": odd,
        "exit_code": exit_code(state),
    }
    return {key: _finite(value) for key, value in document.items()}


def _node_json(node: NodeState, state: State) -> dict[str, Any]:
    mark, why = table.node_mark(node, state)
    reading = asdict(node.sample) if node.sample is not None else {}
    reading.pop("node", None)
    down = node.down
    return {
        "name": node.name,
        "state": STATES[mark],
        "why": why,
        "age_s": node.age_s(state.now_s),
        "missing_gpus": table.missing(node),
        "unreachable": {"phase": down.phase, "message": down.message} if down else None,
        "energy": _totals_json(node_totals(node, state)),
        "reading": reading or None,
    }


def _usage_json(one: Usage, state: State) -> dict[str, Any]:
    return {
        "user": one.user,
        "job": one.job,
        "nodes": [name for name in state.nodes if name in one.nodes],
        "gpus": one.gpus,
        "idle_gpus": one.idle,
        "util": one.util,
        "memory_used_bytes": one.memory_bytes,
        "power_w": one.power_w,
        **_totals_json(one.totals),
    }


def _totals_json(totals: Totals) -> dict[str, Any]:
    """Since the watch began; energy is null where no second of it is known."""
    return {
        "energy_kwh": totals.energy_kwh,
        "energy_known_gpu_s": totals.known_s,
        "energy_unknown_gpu_s": totals.unknown_s,
        "idle_gpu_s": totals.idle_s,
    }


def _run_json(run: RunState, state: State) -> dict[str, Any]:
    now = asdict(figures(run, state.now_s))
    return {
        "directory": run.directory,
        "name": run.name,
        "nodes": run.planned,
        "node_states": run.node_states,
        "age_s": None if run.last_s is None else state.now_s - run.last_s,
        "figures": {**now, "phases": dict(now["phases"]), "lost_s": dict(now["lost_s"])},
        "validation": asdict(run.validation) if run.validation else None,
        "attempts": [asdict(attempt) for attempt in accounted(run).attempts],
        "last": asdict(run.last) if run.last else None,
        "events": [asdict(sample.event) for sample in run.events[-20:]],
    }


def _finite(value: Any) -> Any:
    """NaN and infinity are not valid JSON; they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
