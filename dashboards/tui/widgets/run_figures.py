"""The numbers of the run screen: time of a step by phase, buckets, throughput, slowest ranks."""

from __future__ import annotations

from rich.style import Style

from dashboards.model import units
from dashboards.model.fleet import short_names
from dashboards.model.run_progress import Figures, figures, mfu
from dashboards.model.state import RunState, State
from dashboards.tui.braille import bar
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, fitted, words
from trainer.runlog.gpu_peaks import peak_flops


class Phases(Panel):
    """Where the seconds of a step go: one bar of parts, and each part with its share."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.recent if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        now = figures(run, state.now_s) if run else None
        if now is None or not now.phases:
            self.title("where a step goes", "")
            return [words((" no timings yet", colors.dim))]
        total = sum(seconds for _, seconds in now.phases)
        self.title("where a step goes", f"mean of {now.window} steps")
        result: list[Line] = []
        shown = list(enumerate(now.phases))
        if len(shown) > height:  # the smallest ones give way
            keep = sorted(shown, key=lambda item: -item[1][1])[:height]
            shown = sorted(keep)
        inner = width - 28
        for index, (name, seconds) in shown:
            filled, empty = bar(seconds / total, max(4, inner))
            ink = colors.bars[index % len(colors.bars)]
            result.append(
                words(
                    (f" {name:<10}", colors.label),
                    (filled, ink),
                    (empty, colors.dim),
                    (f"{units.seconds(seconds):>8}", colors.text),
                    (f"{100 * seconds / total:5.0f}%", colors.label),
                )
            )
        if height - len(result) >= 3 and now.buckets:
            result += _buckets(now, run, width, height - len(result), colors)
        return result


def _buckets(
    now: Figures, run: RunState | None, width: int, room: int, colors: Palette
) -> list[Line]:
    """Which sizes of clips the recent steps were made of."""
    recent = len(run.recent) if run else 0
    lines: list[Line] = [[], words((f" buckets of {recent} steps", colors.dim))]
    wide = min(24, max(len(name) for name, _ in now.buckets))
    for name, part in now.buckets[: room - 2]:
        filled, empty = bar(part, max(4, width - wide - 9))
        lines.append(
            words(
                (f" {name[:wide]:<{wide}} ", colors.label),
                (filled, colors.spark),
                (empty, colors.dim),
                (f"{100 * part:5.0f}%", colors.label),
            )
        )
    return lines


class RunFigures(Panel):
    """Throughput and health in numbers."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        self.title("figures", "")
        if run is None or run.last is None:
            return [words((" no step yet", colors.dim))]
        pairs = self._pairs(run, state, colors)
        entries = [
            words((f" {name:<12}", colors.label), (text, style)) for name, text, style in pairs
        ]
        if height >= len(entries) or width < 56:
            return entries[:height]
        half = width // 2
        return [
            fitted(left, half, colors.text)
            + (entries[height + y] if height + y < len(entries) else [])
            for y, left in enumerate(entries[:height])
        ]

    def _pairs(self, run: RunState, state: State, colors: Palette) -> list[tuple[str, str, Style]]:
        """(name, text, style), the ones to be seen on small terminals first."""
        last, now = run.last, figures(run, state.now_s)
        assert last is not None
        idle = now.idle_share
        waits = (idle or 0) > 0.2 or (now.data_share or 0) > 0.2
        slowest = units.UNKNOWN
        late = now.slowest_steps > 0.3 * now.window and (idle or 0) > 0.1
        if now.slowest_rank is not None:
            slowest = f"{'! ' * late}rank {now.slowest_rank}{_where(run, now.slowest_rank)}"
            slowest += f" {now.slowest_steps}/{now.window}"
        used = mfu(now, _peak(state))
        speed = f"{units.percent(used)}  " if used is not None else ""
        if now.flops_s is not None:
            speed += f"{units.number(now.flops_s / 1e12)} TFLOP/s a rank"
        saved = units.UNKNOWN
        if now.checkpoint is not None:
            step, at_s = now.checkpoint
            saved = f"step {step:,}, " if step is not None else ""
            saved += f"{units.age(max(0.0, state.now_s - at_s))} ago"
        pairs = [
            ("throughput", f"{units.number(now.clips_per_s)} clips/s  {units.count(now.tokens_per_s)} tok/s", colors.text),
            ("MFU", speed or units.UNKNOWN, colors.text),
            ("waiting", "! " * waits + f"ranks {units.percent(idle)}  data {units.percent(now.data_share)}", colors.warn if waits else colors.text),
            ("slowest", slowest, colors.warn if late else colors.text),
            ("checkpoint", saved, colors.text),
            ("lr", f"{units.number(last.lr, 2)}  grad norm {units.number(last.grad_norm)}", colors.text),
            ("bucket", last.bucket or units.UNKNOWN, colors.text),
            ("memory", f"{units.gib(last.memory_bytes)} GiB at most", colors.text),
            ("step", f"p99 {units.seconds(now.p99_s)}  longest {units.seconds(now.longest_s)}", colors.text),
            ("weight norm", units.number(last.weight_norm), colors.text),
        ]  # fmt: skip
        if now.restarts:
            pairs.insert(5, ("restarts", f"{now.restarts}", colors.warn))
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


def _where(run: RunState, rank: int) -> str:
    """The node of a rank, and its place there; empty when nobody planned the run."""
    _, short = short_names(run.planned)
    for name, ranks in zip(run.planned, run.ranks, strict=True):
        if rank < ranks:
            return f" ({short[name]}/{rank})"
        rank -= ranks
    return ""
