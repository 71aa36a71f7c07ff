"""A comparison as lines and a table of 80 columns for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from checks import units
from checks.units import counted
from clusterctl.compare.judge import BAD, GOOD, LOSS, UNKNOWN, Comparison, Verdict
from clusterctl.compare.losses import Losses
from clusterctl.compare.read import Run
from clusterctl.compare.speed import STEP, Timing
from clusterctl.compare.windows import Middle
from clusterctl.output import Cell
from clusterctl.report_lines import Line, labelled
from clusterctl.runs.attempts import DONE, RUNNING

SHOWN_CHANGES, SHOWN_BUCKETS, SHOWN_CLASSES = 12, 12, 8
MOST_NAME = 34  # columns of the name of a figure
_WORDS = {GOOD: ("kept", "good"), BAD: ("EXCEEDED", "bad"), UNKNOWN: ("UNKNOWN", "warn")}


def head(letter: str, run: Run) -> Iterator[Line]:
    """One run: where it is, its steps, how it ended."""
    attempts = run.account.attempts
    ending = attempts[-1].ending if attempts else RUNNING
    how = {DONE: "ended well", RUNNING: "no end on record"}.get(ending, f"ended by {ending}")
    steps = f"steps {run.steps[0]:,.0f} to {run.steps[-1]:,.0f}"
    yield from labelled(
        letter, f"{run.run_dir}: {steps} in {counted(len(attempts), 'attempt')}, {how}"
    )
    if run.unread:
        yield from labelled(
            "", f"{counted(run.unread, 'line')} of its telemetry cannot be read", "warn"
        )


def loss_lines(found: Comparison, letter: str) -> Iterator[Line]:
    """At equal steps and clips; where they part; up to where they are the same."""
    yield from labelled("loss", _difference(found.steps, letter))
    text = "after equal clips: the same, as each step has as many"
    yield from labelled("", text if found.has_equal_batches else _difference(found.clips, letter))
    if (validation := _validation(found, letter)) is not None:
        yield from labelled("", validation)
    same = found.same
    if same.is_all:
        yield from labelled("", f"bit-equal at all {same.common:,} common steps", "good")
        return
    if same.loss_to is not None:
        norm = "not at all" if same.grad_to is None else f"up to step {same.grad_to:,}"
        text = f"bit-equal up to step {same.loss_to:,}, its gradient norms {norm}"
        yield from labelled("", text)
    judged = found.judged
    if judged.parts is not None:
        part = judged.parts
        about = f"{part.estimate.difference:+.3g} beyond an error of {part.estimate.error or 0:.2g}"
        where = f"{judged.by} {math.ceil(part.first):,} to {math.floor(part.last):,}"
        yield from labelled(
            "parts", f"at {where}: {about}, where A has {_four(part.estimate.base)}"
        )
    elif not judged.why:
        text = judged.why_no_parting or "nowhere beyond noise"
        unknown = "cannot tell: " if judged.why_no_parting else ""
        yield from labelled("parts", f"{unknown}{text}", "warn" if unknown else None)


def _validation(found: Comparison, letter: str) -> str | None:
    """At the last step that both were measured after; None where there is no such step."""
    a, b = found.a.validations, found.b.validations
    if not (common := a.keys() & b.keys()):
        return None
    one, other = a[max(common)], b[max(common)]
    text = f"validation after step {one.step:,}: "
    if one.clips != other.clips:
        return f"{text}not compared, as A has {one.clips:,} clips and {letter} {other.clips:,}"
    text += _of_losses(one.model, other.model, letter)
    if one.ema is not None and other.ema is not None:
        text += f"; averaged weights {_of_losses(one.ema, other.ema, letter)}"
    return text


def _of_losses(a: float, b: float, letter: str) -> str:
    change = f"{letter} {_percent((b - a) / abs(a))}" if a else f"{letter} {_four(b)}"
    return f"{change} (A {_four(a)})"


def _difference(found: Losses, letter: str) -> str:
    where = "at equal steps" if found.by == "steps" else "after equal clips"
    if found.why or found.half is None:
        return f"{where}: unknown, {found.why}"
    how = "step by step" if found.is_paired else "bucket by bucket"
    half = found.half
    share = found.share(half.value)
    change = f"{half.value:+.4g}" if share is None else _percent(share)
    text = f"{where}: {letter} {change}{_range(half, found.base)} over the last half of "
    text += f"{found.first:,.0f} to {found.last:,.0f}, {how} (A {_four(found.base)})"
    if any(found.bad):
        text += f"; not finite: {found.bad[0]:,} of A, {found.bad[1]:,} of {letter}"
    return text


def _range(found: Middle, base: float) -> str:
    if found.low is None or found.high is None or not base:
        return " (too few steps for an interval)"
    return f" ({_percent(found.low / abs(base))} to {_percent(found.high / abs(base))})"


def table_rows(found: Comparison) -> Iterator[list[str | Cell]]:
    """(figure, A, B, change), every figure with its unit."""
    timings = [
        (("step" if name == STEP else f"  {name}"), one) for name, one in found.speed.phases.items()
    ]
    buckets = list(found.speed.buckets.items())
    if len(buckets) > 1:
        timings += [(f"step of {name}", one) for name, one in buckets[:SHOWN_BUCKETS]]
    for name, one in timings:
        yield [
            _cut(f"{name}, ms"),
            *(_four(None if x is None else 1e3 * x) for x in (one.a, one.b)),
            _change(one),
        ]
    slow = found.speed.slowdown
    change = "-" if slow is None else _percent(slow.value)
    yield ["rank-seconds per clip", "", "", change]
    if slow is not None and slow.low is not None and slow.high is not None:
        yield ["", "", "", f"{_percent(slow.low)} to {_percent(slow.high)}"]
    a, b = found.rates
    pairs: Sequence[tuple[str, float | None, float | None]] = (
        ("clips/s", a.clips_per_s, b.clips_per_s),
        ("tokens/s", a.tokens_per_s, b.tokens_per_s),
        ("TFLOP/s of a rank", _scaled(a.flops_s, 1e-12), _scaled(b.flops_s, 1e-12)),
    )
    for name, one_value, other in pairs:
        yield [name, _four(one_value), _four(other), _change(Timing(one_value, other))]
    held = (a.memory_bytes, b.memory_bytes)
    sizes = ["-" if x is None else units.size(x) for x in held]
    yield ["largest memory", *sizes, _change(Timing(*held))]
    shares = (
        ("MFU", a.mfu, b.mfu),
        ("idle of ranks", a.idle_share, b.idle_share),
        ("effective time (ETTR)", a.ettr, b.ettr),
    )
    for name, one_value, other in shares:
        yield [
            name,
            *("-" if x is None else f"{x:.1%}" for x in (one_value, other)),
            _points(one_value, other),
        ]
    counts = [("ranks", a.world, b.world), ("restarts", a.restarts, b.restarts)]
    classes = list(dict.fromkeys([*a.incidents, *b.incidents]))
    counts += [
        (f"incidents {name}", a.incidents.get(name, 0), b.incidents.get(name, 0))
        for name in classes[:SHOWN_CLASSES]
    ]
    for name, one_count, other_count in counts:
        change = f"{other_count - one_count:+,}" if one_count != other_count else ""
        yield [_cut(name), f"{one_count:,}", f"{other_count:,}", change]


def change_lines(found: Comparison) -> Iterator[Line]:
    """What differs in config, code, nodes and data."""
    changes = found.changes
    if not changes.changes:
        yield from labelled("changed", "nothing that is recorded")
    for index, (what, before, now) in enumerate(changes.changes[:SHOWN_CHANGES]):
        yield from labelled("" if index else "changed", f"{what}: {before} -> {now}")
    left = len(changes.changes) - SHOWN_CHANGES
    if left > 0:
        yield from labelled("", f"and {counted(left, 'other change')} (--json has all)")
    if changes.not_recorded:
        yield from labelled(
            "", f"not compared, as runs do not record it: {', '.join(changes.not_recorded)}", "dim"
        )


def verdict_lines(found: Comparison, letter: str) -> Iterator[Line]:
    """One for each limit."""
    for index, one in enumerate(found.verdicts):
        word, style = _WORDS[one.verdict]
        why = f" ({one.why})" if one.why else ""
        text = (
            f"{letter}: {one.what} {_value(found, one)}limit {100 * one.limit:.4g} %: {word}{why}"
        )
        yield from labelled("" if index else "verdict", text, style)


def _value(found: Comparison, one: Verdict) -> str:
    half, base = found.speed.slowdown, 1.0
    if one.what == LOSS:
        half, base = found.judged.half, found.judged.base
    if half is None or not base:
        return ""
    return f"{_percent(half.value / base)}{_range(half, base)}, "


def _cut(text: str) -> str:
    return text if len(text) <= MOST_NAME else f"{text[: MOST_NAME - 3]}..."


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _change(one: Timing) -> str:
    return "-" if one.change is None else _percent(one.change)


def _points(a: float | None, b: float | None) -> str:
    return "-" if a is None or b is None else f"{round(100 * (b - a), 1) + 0.0:+.1f} points"


def _percent(share: float) -> str:
    """+1.23 %, -40.1 %."""
    value = 100 * share
    return f"{value:+.2f} %" if abs(value) < 9.995 else f"{value:+,.1f} %"


def _four(value: float | None) -> str:
    """Four significant digits."""
    if value is None or not math.isfinite(value):
        return "-"
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(6, max(0, digits))}f}"
