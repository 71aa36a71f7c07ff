"""A plan as text of at most 80 columns, and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.checkpoints.plan import Plan, Row
from clusterctl.output import Cell
from clusterctl.report_lines import wrapped

LABEL = 16  # columns
MOST_TOLD = 5  # of checkpoints that are not counted
COLUMNS = ("EVERY", "INTERVAL", "SAVES", "FAILURES", "ETTR", "MORE DISK", "")
RIGHT = COLUMNS[:-1]
NAMES = {
    "save_stall_s": "save stall",
    "save_write_s": "save time",
    "step_s": "step time",
    "mtbf_s": "failure every",
    "detect_s": "detection",
    "restart_s": "restart",
}


def about(plan: Plan) -> str:
    """One line: which run, where it is, on how many ranks."""
    of = f" of {plan.steps_total:,}" if plan.steps_total else ""
    step = f", step {plan.step:,}{of}" if plan.state != "planned" else ""
    ranks = f", {counted(plan.world, 'rank')}" if plan.world else ""
    return f"{plan.subject.name}: {plan.state}{step}{ranks}"


def figure_lines(plan: Plan) -> Iterator[str]:
    """What the interval is computed from, each with its source."""
    for name, label in NAMES.items():
        figure = plan.figures[name]
        value = "unknown" if figure.value is None else units.duration(figure.value)
        why = figure.why if figure.value is None else figure.text
        yield from wrapped(why, start=f"  {label:<{LABEL - 2}}{value:<13}")


def interval_lines(plan: Plan) -> Iterator[str]:
    """The best one in time and in steps, and what share of time is kept now and with it."""
    every, best_s = plan.subject.settings.rules.ckpt_every, units.duration(plan.costs.best_s)
    limit = ", the time that a save takes" if plan.costs.is_limited_by_writing else ""
    if plan.best is None or plan.best_steps is None:
        yield from wrapped(
            f"best {best_s}{limit}; in steps: unknown", start=f"{'interval':<{LABEL}}"
        )
        return
    is_now = "only at the end" if not every else f"{every:,}"
    text = f"best {best_s}{limit}: ckpt_every = {plan.best_steps} (now {is_now})"
    if plan.is_one_save_enough:
        text += "; what is left of the run is shorter, so its last save is enough"
    yield from wrapped(text, start=f"{'interval':<{LABEL}}")
    now = f"{plan.now.ettr:.4f} now, " if plan.now else ""
    share = f"{now}{plan.best.ettr:.4f} with ckpt_every = {plan.best_steps}"
    if not plan.best.ettr:
        share += ": failures come faster than the run recovers"
    share += "; effective training time ratio: the share of time in steps that count"
    yield from wrapped(share, start=f"{'expected ETTR':<{LABEL}}")


def table_rows(plan: Plan) -> list[list[str | Cell]]:
    """Intervals around the best one: share of time lost to saves and failures, and needed disk."""
    return [_row(plan, row) for row in plan.rows]


def _row(plan: Plan, row: Row) -> list[str | Cell]:
    marks = ["best"] if row.ckpt_every == plan.best_steps else []
    marks += ["now"] if row.ckpt_every == plan.subject.settings.rules.ckpt_every else []
    more = row.more_peak_bytes
    disk = "unknown" if more is None else units.size(more) if more else "none"
    space = plan.subject.space
    is_over = space is not None and (more or 0) > space.free_bytes
    return [
        f"{row.ckpt_every:,}",
        units.duration(row.interval_s),
        f"{100 * row.save_share:.2f} %",
        f"{100 * row.failure_share:.2f} %",
        f"{row.ettr:.4f}",
        Cell(disk, "bad" if is_over else None),
        ", ".join([*marks, *(["does not fit"] if is_over else [])]),
    ]


def disk_lines(plan: Plan) -> Iterator[str]:
    """Size of a checkpoint, which are kept, what the run needs, and what is free."""
    one, space, need = plan.subject.size, plan.subject.space, plan.disk.need
    text = f"unknown: {plan.subject.size_source}"
    if one is not None:
        parts = f"model {units.size(one.model_bytes)}, ema {units.size(one.ema_bytes)}, "
        parts += f"optimizer {units.size(one.optimizer_bytes)}"
        text = f"{units.size(one.total_bytes)} ({parts}), {plan.subject.size_source}; "
        text += f"{units.size(one.extra_bytes)} beside it while it is written"
    yield from wrapped(text, start=f"{'one checkpoint':<{LABEL}}")
    if out := plan.subject.left_out:
        more = f"; and {len(out) - MOST_TOLD} more" if len(out) > MOST_TOLD else ""
        text = f"checkpoints that are not counted: {'; '.join(out[:MOST_TOLD])}{more}"
        yield from wrapped(text, start=f"{'left out':<{LABEL}}")
    yield from wrapped(retention(plan), start=f"{'retention':<{LABEL}}")
    if need is None:
        yield from wrapped(f"unknown: {plan.disk.why}", start=f"{'disk':<{LABEL}}")
    elif not need.saves:
        yield f"{'disk':<{LABEL}}no further save; {units.size(need.end_bytes)} are held"
    else:
        then = "at the end" if plan.steps_total else "later, however long the run is"
        peak = f"the save of step {need.peak_step:,}" if plan.steps_total else "a save"
        text = f"{units.size(need.more_peak_bytes)} more while {peak} is written; "
        text += f"held: {_held(len(plan.subject.checkpoints), plan.disk.held_bytes)} now, "
        text += f"{_held(need.kept, need.end_bytes)} {then}"
        yield from wrapped(text, start=f"{'disk':<{LABEL}}")
    free = f"unknown: {plan.subject.space_why}"
    if space is not None:
        free = (
            f"{units.size(space.free_bytes)} of {units.size(space.total_bytes)} in {space.folder}"
        )
    yield from wrapped(free, start=f"{'free':<{LABEL}}")


def _held(count: int, total_bytes: int) -> str:
    return f"{units.size(total_bytes)} in {counted(count, 'checkpoint')}" if count else "none"


def retention(plan: Plan) -> str:
    """The keys of the config that say when it saves and what it keeps."""
    rules = plan.subject.settings.rules
    every = f"ckpt_every = {rules.ckpt_every}"
    every += ", ckpt_at_epoch_end = True" if rules.ckpt_at_epoch_end else ""
    keep = f"keep_checkpoints = {rules.keep_checkpoints}"
    keep += " (all)" if rules.keep_checkpoints < 1 else f", keep_every = {rules.keep_every}"
    return f"{every}, {keep}"


def verdict(plan: Plan) -> str:
    """One sentence: whether the checkpoints fit, and what to change where they do not."""
    space, need = plan.subject.space, plan.disk.need
    if need is None or space is None:
        why = plan.disk.why if need is None else f"free space is unknown: {plan.subject.space_why}"
        return f"could not find out whether the checkpoints fit: {why}"
    free, more = space.free_bytes, need.more_peak_bytes
    room = f"they need {units.size(more)} more and {units.size(free)} are free"
    if more > free:
        lacks = f"the checkpoints do not fit: {room}"
        keep = plan.disk.keep_that_fits
        if keep is not None:
            return f"{lacks}; keep_checkpoints = {keep} fits"
        lacks += f"; no keep_checkpoints fits, so free {units.size(more - free)} or save elsewhere"
        return lacks
    fits = f"the checkpoints fit: {room}"
    if not need.saves:
        fits = "the checkpoints fit: the run saves no more"
    missing = "; what ckpt_every should be is unknown without --step-time"
    return fits + (missing if plan.best_steps is None else "")


def document(plan: Plan) -> dict[str, Any]:
    """The keys of `--json`, without schema and command."""
    subject, costs, need = plan.subject, plan.costs, plan.disk.need
    one, space, rules = subject.size, subject.space, subject.settings.rules
    unknown = {name: figure.why for name, figure in plan.figures.items() if figure.value is None}
    return {
        "run": subject.name,
        "state": plan.state,
        "step": plan.step,
        "steps_total": plan.steps_total,
        "world": plan.world,
        "inputs": {
            **{name: figure.value for name, figure in plan.figures.items()},
            "sources": {name: figure.text for name, figure in plan.figures.items()},
            "unknown": unknown,
        },
        "failures": {
            "count": len(plan.failures.failures),
            "runs": plan.failures.runs,
            "observed_s": plan.failures.observed_s,
            "rank_s": plan.failures.rank_s,
            "failed_starts": plan.failures.failed_starts,
            "texts": list(plan.failures.texts),
        },
        "interval": {
            "best_s": costs.best_s,
            "is_limited_by_writing": costs.is_limited_by_writing,
            "best_ckpt_every": plan.best_steps,
            "is_one_save_enough": plan.is_one_save_enough,
            "now_ckpt_every": rules.ckpt_every,
            "best_ettr": plan.best.ettr if plan.best else None,
            "now_ettr": plan.now.ettr if plan.now else None,
        },
        "rows": [
            {name: getattr(row, name) for name in Row.__dataclass_fields__} for row in plan.rows
        ],
        "checkpoint": {
            "model_bytes": one.model_bytes if one else None,
            "ema_bytes": one.ema_bytes if one else None,
            "optimizer_bytes": one.optimizer_bytes if one else None,
            "total_bytes": one.total_bytes if one else None,
            "source": subject.size_source,
        },
        "left_out": list(subject.left_out),
        "retention": {name: getattr(rules, name) for name in type(rules).__dataclass_fields__},
        "disk": {
            "folder": str(space.folder) if space else None,
            "free_bytes": space.free_bytes if space else None,
            "total_bytes": space.total_bytes if space else None,
            "held_bytes": plan.disk.held_bytes,
            "more_peak_bytes": need.more_peak_bytes if need else None,
            "peak_step": need.peak_step if need else None,
            "end_bytes": need.end_bytes if need else None,
            "saves": need.saves if need else None,
            "kept": need.kept if need else None,
            "keep_that_fits": plan.disk.keep_that_fits,
            "fits": plan.fits,
        },
        "headline": verdict(plan),
        "exit_code": plan.exit_code,
    }
