"""Figures of a benchmark: as rows of a table and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.bench.child import Outcome
from trainer.bench.shapes import Shape
from trainer.bench.trial import PHASES, PLAIN, Measured


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket on one path."""

    shape: Shape
    path: str
    tokens: int  # latent tokens of the batch
    outcome: Outcome

    def to_json(self, peak: float | None) -> dict[str, Any]:
        """Seconds, bytes, FLOP/s; `mfu` counts forward and backward pass, recomputation apart."""
        same = ("ratio", "height", "width", "latent")
        document = {
            "bucket": self.shape.name,
            **{name: getattr(self.shape, name) for name in same},
            "path": self.path,
            "batch_size": self.shape.batch_size,
            "tokens": self.tokens,
            "result": self.outcome.kind.value,
            "reason": self.outcome.reason,
        }
        measured = self.outcome.measured
        if measured is None:
            return document
        return document | asdict(measured) | rates(measured, self.tokens, peak)


def rates(measured: Measured, tokens: int, peak: float | None) -> dict[str, float | None]:
    """Throughput of a measurement; shares of the peak are None without one."""
    passes_s = measured.forward_s + measured.backward_s
    flops, recompute = measured.model_flops / passes_s, measured.recompute_flops / passes_s
    of_step = measured.model_flops / measured.step_s
    return {
        "tokens_per_s": tokens / measured.step_s,
        "flops_per_s": flops,
        "recompute_flops_per_s": recompute,
        "step_flops_per_s": of_step,
        "mfu": None if peak is None else flops / peak,
        "recompute_share": None if peak is None else recompute / peak,
        "mfu_of_step": None if peak is None else of_step / peak,
    }


def print_table(rows: Sequence[Row], peak: float | None) -> None:
    """Columns without boxes, the same on a terminal and in a pipe."""
    from rich.console import Console
    from rich.table import Table

    # Whole lines, however narrow the terminal: a figure cut short is a wrong figure.
    console = Console(width=240, highlight=False)
    plain = {row.shape.name: row.outcome.measured for row in rows if row.path == PLAIN}
    left_out = [] if plain else ["path", "faster"]
    left_out += ["MFU"] if peak is None else []
    names = ["bucket", "path", "batch", "tokens", *PHASES, "step s", "tokens/s", "TFLOP/s", "MFU"]
    names = [name for name in (*names, "again", "peak MB", "faster") if name not in left_out]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        left = name in ("bucket", "path")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        measured = row.outcome.measured
        if measured is None:
            cells = {"forward": row.outcome.kind.value}
        else:
            cells = _cells(measured, row.tokens, peak)
            other = plain.get(row.shape.name)
            if other is not None and row.path != PLAIN:
                cells["faster"] = f"{other.step_s / measured.step_s:.2f}x"
        cells |= {"bucket": row.shape.name, "path": row.path}
        cells |= {"batch": str(row.shape.batch_size), "tokens": f"{row.tokens:,}"}
        table.add_row(*(cells.get(name, "-") for name in names))
    console.print(table)
    for row in rows:
        if row.outcome.measured is None:
            console.print(f"{row.shape.name} {row.path}: {row.outcome.reason}", markup=False)


def _cells(measured: Measured, tokens: int, peak: float | None) -> dict[str, str]:
    figures = rates(measured, tokens, peak)
    mfu, recompute = figures["mfu"], measured.recompute_flops / measured.model_flops
    return {
        **{name: _seconds(getattr(measured, f"{name}_s")) for name in PHASES},
        "step s": _seconds(measured.step_s),
        "tokens/s": f"{figures['tokens_per_s']:,.0f}",
        "TFLOP/s": f"{(figures['flops_per_s'] or 0) / 1e12:.3g}",
        "MFU": "-" if mfu is None else f"{100 * mfu:.1f}%",
        "again": f"+{100 * recompute:.0f}%",
        "peak MB": f"{measured.peak_bytes / 1e6:,.0f}",
    }


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
