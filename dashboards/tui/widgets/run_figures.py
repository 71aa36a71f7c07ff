"""The numbers of the run screen: time of a step by phase, buckets, throughput, slowest ranks."""

from __future__ import annotations

from rich.style import Style

from dashboards.model import units
from dashboards.model.fleet import short_names
from dashboards.model.run_progress import figures, mfu
from dashboards.model.state import RunState, State
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, beside, gauge, words
from trainer.runlog.gpu_peaks import peak_flops


class Phases(Panel):
    """Where the seconds of a step go: one bar of parts, and each part with its share."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.recent if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        now = figures(run, state.now_s) if run else None
        if now is None or not now.phases:
            self.title("where a step goes")
            return [words((" no timings yet", colors.dim))]
        total = sum(seconds for _, seconds in now.phases)
        self.title("where a step goes", f"mean of {now.window} steps")
        by_time = sorted(range(len(now.phases)), key=lambda index: -now.phases[index][1])
        result: list[Line] = []
        for index in sorted(by_time[:height]):  # the smallest ones give way
            (name, seconds), style = now.phases[index], colors.bars[index % len(colors.bars)]
            filled = gauge(seconds / total, max(4, width - 28), style, colors)
            share = words(
                (f"{units.seconds(seconds):>8}", colors.text),
                (f"{100 * seconds / total:5.0f}%", colors.label),
            )
            result.append(words((f" {name:<10}", colors.label)) + filled + share)
        room = height - len(result)
        if room < 3 or not now.buckets:
            return result
        # Which sizes of clips the recent steps were made of.
        result += [[], words((f" buckets of {len(run.recent) if run else 0} steps", colors.dim))]
        wide = min(24, max(len(name) for name, _ in now.buckets))
        for name, part in now.buckets[: room - 2]:
            filled = gauge(part, max(4, width - wide - 9), colors.spark, colors)
            percent = words((f"{100 * part:5.0f}%", colors.label))
            result.append(words((f" {name[:wide]:<{wide}} ", colors.label)) + filled + percent)
        return result


class RunFigures(Panel):
    """Throughput and health in numbers."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        self.title("figures")
        if run is None or run.last is None:
            return [words((" no step yet", colors.dim))]
        entries = [
            words((f" {name:<12}", colors.label), (text, style))
            for name, text, style in self._pairs(run, state, colors)
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
        slowest = units.UNKNOWN
        if rank is not None:
            place = run.place_of(rank)
            where = f" ({short_names(run.planned)[1][place[0]]}/{place[1]})" if place else ""
            slowest = f"{'! ' * late}rank {rank}{where} {now.slowest_steps}/{now.window}"
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
