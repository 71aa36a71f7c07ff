"""The panels of the run screen: how far, the curves, where a step goes, figures, events, nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from rich.segment import Segment
from rich.style import Style

from checks.units import counted
from dashboards.model import units
from dashboards.model.run_progress import Figures, figures, in_words, is_bad, mfu, newest, one_line
from dashboards.model.slow_ranks import in_short
from dashboards.model.state import RunState, State
from dashboards.model.table import node_mark, short_names
from dashboards.tui import braille
from dashboards.tui.braille import BLANK, Scale, finite, nice_scale, resampled
from dashboards.tui.widgets.attempts import attempt_pairs
from dashboards.tui.widgets.bars import last_step_age, progress_bar, status_words
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, beside, clock, gauge, spread, words
from trainer.runlog.figures import peak_flops
from trainer.runlog.telemetry import StepRecord


class RunHead(Panel):
    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        if run is None:
            text = " no run is watched: clusterctl top --run outputs/NNN-MODEL"
            return [words((text, colors.dim))]
        now = figures(run, state.now_s)
        left = words((f" {run.name}  ", colors.strong), *status_words(now, colors))
        if run.last is None:
            return [left]
        if width >= 100:
            left += words((f"  epoch {run.last.epoch}", colors.label))
        left += words((f"  {now.step:,}/{now.steps_total:,}", colors.text))
        style = colors.alarm if now.status == "stalled" else colors.label
        right = words((f"{last_step_age(run, state)} ", style))
        if now.eta_s is not None:
            arrival = time.strftime("%a %H:%M", time.localtime(state.now_s + now.eta_s))
            eta = words(("ETA ", colors.dim), (units.duration(now.eta_s), colors.strong))
            right = eta + words((f" ({arrival})  " if width >= 90 else "  ", colors.label)) + right
        if height < 2:
            percent = "" if now.part is None else f"  {100 * now.part:.0f}%"
            left += words((percent, colors.good))
        bar = [Segment(" ", colors.text), *progress_bar(now, width - 2, colors)]
        return [spread(left, right, width, colors.text), bar][:height]


class CurvePanel(Panel):
    """A figure of every step of the run, with a scale at the left and step numbers below."""

    NAME, NOTHING_YET = "", ""
    COLUMN, STYLE = 0, ""  # in the rows of the curve, in Palette
    DOTS: tuple[int, ...] = ()  # column of what is faint behind it
    FROM_ZERO = False

    def looks_at(self, state: State) -> object:
        return state.run.curve if state.run else None

    def heading(self, last: StepRecord, now: Figures) -> tuple[str, str]:
        raise NotImplementedError

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        run = state.run
        rows = run.curve.rows() if run else []
        if run is None or run.last is None or not rows:
            self.title(self.NAME)
            yield words((self.NOTHING_YET, colors.dim))
            return
        self.title(*self.heading(run.last, figures(run, state.now_s)))
        points = [(row[0], row[self.COLUMN]) for row in rows]
        dots = [(row[0], row[column]) for column in self.DOTS for row in rows]
        known = finite([y for _, y in [*points, *dots]])
        scale = nice_scale(_without_outliers(known), from_zero=self.FROM_ZERO)
        marks = _labels(scale, height - 1)
        gutter = max(len(text) for text in marks.values()) + 1
        inner, tall = width - gutter - 1, height - 1
        if inner < 4 or tall < 1:
            return
        low, high = rows[0][0] - (run.curve.stride - 1) / 2, float(run.last.step)
        per_step = 2 * inner / ((high - low) or 1.0)
        main = resampled(points, 2 * inner, low, high)
        placed = [(min(2 * inner - 1, int((x - low) * per_step)), y) for x, y in dots]
        styles = {BLANK: colors.dim, 0: colors.faint, 1: getattr(colors, self.STYLE)}
        for y, row in enumerate(braille.curve(main, inner, tall, scale, placed)):
            line = words((f"{marks.get(y, ''):>{gutter - 1}} ", colors.dim))
            yield line + [Segment(text, styles[layer]) for text, layer in row]
        yield words((" " * gutter + _step_axis(low, high, inner), colors.dim))


class LossCurve(CurvePanel):
    """Loss of every step in faint, smoothed in bright."""

    NAME, NOTHING_YET = "loss", " the curve begins with the first step"
    COLUMN, DOTS, STYLE = 2, (1,), "good"

    def heading(self, last: StepRecord, now: Figures) -> tuple[str, str]:
        return f"loss {units.number(now.smooth_loss)}", f"this step {units.number(last.loss)}"


class StepCurve(CurvePanel):
    NAME, COLUMN, STYLE, FROM_ZERO = "step time", 3, "accent", True

    def heading(self, last: StepRecord, now: Figures) -> tuple[str, str]:
        return f"step {units.measured(now.step_s)}", f"p99 {units.measured(now.p99_s)}"


def _without_outliers(values: list[float]) -> list[float]:
    """The first steps and a pause may be far above: the scale follows the other 98 %."""
    if len(values) < 100:
        return values
    ordered = sorted(values)
    limit = max(ordered[int(0.98 * len(ordered))], 3 * ordered[len(ordered) // 2])
    return [value for value in values if value <= limit]


def _labels(scale: Scale, rows: int) -> dict[int, str]:
    labels = {0: units.number(scale.high), rows - 1: units.number(scale.low)}
    if rows >= 7:
        middle = rows // 2
        value = scale.high - (scale.high - scale.low) * middle / (rows - 1)
        labels[middle] = units.number(value)
    return labels


def _step_axis(low: float, high: float, inner: int) -> str:
    left, right = f"{low:,.0f}", f"{high:,.0f}"
    middle = f"{(low + high) / 2:,.0f}" if inner > 40 else "step"
    gap = inner - len(left) - len(right) - len(middle)
    if gap < 2:
        return right.rjust(inner)
    return left + " " * (gap // 2) + middle + " " * (gap - gap // 2) + right


class Events(Panel):
    def looks_at(self, state: State) -> object:
        return state.run.events if state.run else None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        run = state.run
        events = run.events if run else ()
        self.title("events", str(len(events)) * (len(events) > height))
        if not events:
            yield words((" nothing yet", colors.dim))
        with_steps = any(sample.event.step is not None for sample in events)
        for sample in events[-1 : -height - 1 : -1]:
            event, bad = sample.event, is_bad(sample.event)
            at = clock(event.time_s) if event.time_s else "-"
            step = "" if event.step is None else f"{event.step:,}"
            yield words(
                (f" {at} ", colors.dim),
                ("! " if bad else "  ", colors.bad),
                (f"{event.name:<11}", colors.bad if bad else colors.label),
                (f"{step:>6} " if with_steps else "", colors.dim),
                (" " + one_line(event), colors.text),
            )


class RunNodes(Panel):
    """The nodes of the run: the launcher's state of each, and the fleet's."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        names = list(run.planned if run and run.planned else state.nodes)
        self.title(counted(len(names), "node") if names else "nodes")
        lines: list[Line] = []
        marks: list[str] = []  # of the lines
        others: Counter[str] = Counter()  # by what they are, where not all have a line
        for name in names:
            node = state.nodes.get(name)
            status = run.node_states.get(name, "") if run else ""
            mark, why = node_mark(node, state) if node else ("", "")
            if status in ("lost", "failed"):
                mark, why = "!", status
            style, word = colors.mark(mark, colors.good), status or "ok"
            if not status and (node is None or not state.watches):
                style, word = colors.dim, "not watched"
            if not mark and len(names) > height:
                others[word] += 1
                continue
            marks.append(mark)
            word = f"{mark} {why}" if mark else word
            between = f" {status} " if mark and status not in ("", why) else " "
            lines.append(words((f" {name} ", colors.text), (between, colors.label), (word, style)))
        if others or len(lines) > height:
            seen = max(0, height - 1)
            hidden = Counter(marks[seen:])
            bad = "".join(f" {mark}{count}" for mark, count in hidden.items())
            rest = "".join(f"  {count} {word}" for word, count in others.items())
            more = f"{bad} more" if bad else ""
            lines[seen:] = [words((more, colors.warn), (rest, colors.label))]
        return lines


class Phases(Panel):
    """Where the seconds of a step go: one bar of parts, and each part with its share."""

    def looks_at(self, state: State) -> object:
        return state.run.recent if state.run else None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        run = state.run
        now = figures(run, state.now_s) if run else None
        if run is None or now is None or not now.phases:
            self.title("where a step goes")
            yield words((" no timings yet", colors.dim))
            return
        total = sum(seconds for _, seconds in now.phases)
        self.title("where a step goes", f"mean of {now.window} steps")
        by_time = sorted(range(len(now.phases)), key=lambda index: -now.phases[index][1])
        for index in sorted(by_time[:height]):  # the smallest ones give way
            (name, seconds), style = now.phases[index], colors.bars[index % len(colors.bars)]
            filled = gauge(seconds / total, max(4, width - 28), style, colors)
            share = words(
                (f"{units.measured(seconds):>10}", colors.text),
                (f"{100 * seconds / total:5.0f}%", colors.label),
            )
            yield words((f" {name:<10}", colors.label)) + filled + share
        if height - len(now.phases) < 3 or not now.buckets:
            return
        # Which sizes of clips the recent steps were made of.
        yield []
        yield words((f" buckets of {len(run.recent)} steps", colors.dim))
        wide = min(24, max(len(name) for name, _ in now.buckets))
        for name, part in now.buckets:
            filled = gauge(part, max(4, width - wide - 9), colors.spark, colors)
            percent = words((f"{100 * part:5.0f}%", colors.label))
            yield words((f" {name[:wide]:<{wide}} ", colors.label)) + filled + percent


class RunFigures(Panel):
    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        self.title("figures")
        if run is None or run.last is None:
            return [words((" no step yet", colors.dim))]
        pairs = self._pairs(run, state, colors)
        entries = [
            words((f" {name:<12}", colors.label), (text, style)) for name, text, style in pairs
        ]
        if height >= len(entries) or width < 56:
            return entries
        columns = [(entries[:height], width // 2), (entries[height:], width - width // 2)]
        return beside(columns, height, colors.text)

    def _pairs(self, run: RunState, state: State, colors: Palette) -> list[tuple[str, str, Style]]:
        """(name, text, style), the ones to be seen on small terminals first."""
        last, now = run.last, figures(run, state.now_s)
        assert last is not None
        idle, rank = now.idle_share, now.slowest_rank
        waits = (idle or 0) > 0.2 or (now.data_share or 0) > 0.2
        late = now.slowest_steps > 0.3 * now.window and (idle or 0) > 0.1
        slowest = saved = units.UNKNOWN
        if rank is not None:
            place = run.place_of(rank)
            where = f" ({short_names(run.planned)[1][place[0]]}/{place[1]})" if place else ""
            slowest = f"{'! ' * late}rank {rank}{where} {now.slowest_steps}/{now.window}"
        if told := in_short(run):
            late, slowest = True, f"! {told}"
        used = mfu(now, _peak(state)) or newest(run, "mfu")
        speed = f"{units.percent(used)}  " if used is not None else ""
        if now.flops_s is not None:
            speed += f"{units.number(now.flops_s / 1e12)} TFLOP/s a rank"
        if now.checkpoint is not None:
            step, at_s = now.checkpoint
            saved = f"step {step:,}, " if step is not None else ""
            saved += units.ago(state.now_s - at_s)
        memory = f"{units.size(last.memory_bytes)} at most"
        if last.memory_reserved_bytes is not None:
            memory += f"  {units.size(last.memory_reserved_bytes)} reserved"
        update, gap = newest(run, "update_ratio"), newest(run, "ema_gap")
        norm = units.number(last.weight_norm)
        if update is not None:
            norm += f"  update {units.number(update, 2)}  EMA gap {units.number(gap, 2)}"
        by_time = newest(run, "loss_by_time")
        bands = "  ".join(f"{band} {units.number(loss)}" for band, loss in by_time.items())
        pairs = [
            ("throughput", f"{units.number(now.clips_per_s)} clips/s  {units.count(now.tokens_per_s)} tok/s", colors.text),
            ("MFU" if used is not None else "speed", speed or units.UNKNOWN, colors.text),
            ("waiting", "! " * waits + f"ranks {units.percent(idle)}  data {units.percent(now.data_share)}", colors.warn if waits else colors.text),
            ("slowest", slowest, colors.warn if late else colors.text),
            ("checkpoint", saved, colors.text),
            ("lr", f"{units.number(last.lr, 2)}  grad norm {units.number(last.grad_norm)}", colors.text),
            ("bucket", last.bucket or units.UNKNOWN, colors.text),
            ("memory", memory, colors.text),
            ("step", f"p99 {units.measured(now.p99_s)}  longest {units.measured(now.longest_s)}", colors.text),
            ("weight norm", norm, colors.text),
        ]  # fmt: skip
        if bands:
            pairs.append(("loss by time", bands, colors.text))
        if last.bad_clips:
            pairs.insert(3, ("bad clips", f"! {last.bad_clips} in this step", colors.warn))
        if (known := run.validation) is not None:
            pairs.insert(4, ("validation", in_words(known), colors.text))
        first = 0 if now.restarts else 5
        pairs[first:first] = attempt_pairs(now, colors)
        return pairs


def _peak(state: State) -> float | None:
    """FLOP/s of the kind of GPU that the nodes have; None where they differ or it is not known."""
    names = {
        gpu.name
        for node in state.nodes.values()
        for gpu in (node.sample.gpus or () if node.sample else ())[:1]
        if gpu.name
    }
    return peak_flops(names.pop(), "bf16") if len(names) == 1 else None
