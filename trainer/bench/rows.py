"""What was measured of a bucket on one path: figures for JSON, and the tables of a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.bench.child import Outcome
from trainer.bench.encoders import Encoding
from trainer.bench.shapes import Shape
from trainer.bench.trial import OTHERS, OURS, PHASES, Measured
from trainer.runlog import units

_WIDTH, _GAP = 80, "  "  # of a table


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket on one path; `encoders` are outcomes of `encoders.Encoding` by name."""

    shape: Shape
    path: str
    tokens: int  # latent tokens of the batch
    outcome: Outcome
    encoders: Mapping[str, Outcome] = field(default_factory=dict)

    def to_json(self, peak: float | None, others: Mapping[str, Measured]) -> dict[str, Any]:
        """Seconds, bytes, FLOP/s; `mfu` counts forward and backward pass, recomputation apart.

        `others`: the same bucket on other paths, for `faster`.
        """
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
        if self.encoders:
            document["encoders"] = {
                name: encoder_to_json(outcome, self.share(name))
                for name, outcome in self.encoders.items()
            }
        measured = self.outcome.measured
        if measured is None:
            return document
        times = {name: other.step_s / measured.step_s for name, other in others.items()}
        figures = rates(measured, self.tokens, peak)
        return document | asdict(measured) | figures | ({"faster": times} if times else {})

    def share(self, name: str) -> float | None:
        """Of one encoder in a whole step: encoders, model and optimizer. None: not all measured."""
        parts = [outcome.measured for outcome in self.encoders.values()]
        if self.outcome.measured is None or None in parts:
            return None
        whole = self.outcome.measured.step_s + sum(part.seconds for part in parts)
        return self.encoders[name].measured.seconds / whole


def encoder_to_json(outcome: Outcome, share: float | None) -> dict[str, Any]:
    document = {"result": outcome.kind.value, "reason": outcome.reason}
    if outcome.measured is None:
        return document
    return {**document, **asdict(outcome.measured), "share_of_step": share}


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


def other_paths(rows: Sequence[Row], of: Row) -> dict[str, Measured]:
    """What our row of a bucket is compared with; nothing for the others."""
    return {
        row.path: row.outcome.measured
        for row in rows
        if of.path == OURS
        and row.path in OTHERS
        and row.shape == of.shape
        and row.outcome.measured is not None
    }


def print_table(rows: Sequence[Row], peak: float | None) -> None:
    """Steps, and below them the encoders where they were measured."""
    compared = [path for path in OTHERS if any(row.path == path for row in rows)]
    names = ["bucket", *(["path"] if compared else []), "batch", "tokens", *PHASES, "step"]
    names += ["first", "tokens/s", "TFLOP/s", *([] if peak is None else ["MFU"]), "again"]
    names += ["peak", "predicted", *(f"faster than {path}" for path in compared)]
    lines = []
    for row in rows:
        measured = row.outcome.measured
        if measured is None:
            cells = {"forward": row.outcome.kind.value}
        else:
            cells = _cells(measured, row.tokens, peak)
            for path, other in other_paths(rows, row).items():
                cells[f"faster than {path}"] = f"{other.step_s / measured.step_s:.2f}x"
        cells |= {"path": row.path, "tokens": f"{row.tokens:,}"}
        lines.append(cells | _bucket(row))
    print_columns(names, lines, ("bucket", "path"))
    for row in rows:
        if row.outcome.measured is None:
            print(f"{row.shape.name} {row.path}: {row.outcome.reason}")
    _print_encoders([row for row in rows if row.encoders])


def _print_encoders(rows: Sequence[Row]) -> None:
    lines, reasons = [], []
    for row in rows:
        for name, outcome in row.encoders.items():
            share, found = row.share(name), outcome.measured
            cells = _encoder_cells(found, share) if found else {"seconds": outcome.kind.value}
            lines.append({"encoder": name, **cells} | _bucket(row))
            if found is None:
                reasons.append(f"{row.shape.name} {name}: {outcome.reason}")
    if lines:
        print()
        names = ["bucket", "encoder", "batch", "seconds", "first", "TFLOP", "peak"]
        print_columns([*names, "of a step", "weights"], lines, ("bucket", "encoder", "weights"))
    for reason in reasons:
        print(reason)


def print_columns(
    names: Sequence[str], lines: Sequence[Mapping[str, str]], left: Sequence[str] = ()
) -> None:
    """Columns without boxes, the same on a terminal and in a pipe; `left` ones are left-aligned.

    Columns beyond 80 characters stand below, beside the first left-aligned ones again: a line that
    a terminal folds is read wrongly, and a figure cut short is a wrong figure.
    """
    columns = {name: [name, *(cells.get(name, "-") for cells in lines)] for name in names}
    widths = {name: max(map(len, column)) for name, column in columns.items()}
    for number, part in enumerate(_parts(widths, left)):
        if number:
            print()
        for row in range(len(lines) + 1):
            cells = (
                columns[name][row].ljust(widths[name])
                if name in left
                else columns[name][row].rjust(widths[name])
                for name in part
            )
            print(_GAP.join(cells).rstrip())


def _parts(widths: Mapping[str, int], left: Sequence[str]) -> list[list[str]]:
    """Names of the columns that stand beside each other."""
    keys = list(itertools.takewhile(lambda name: name in left, widths))
    parts = [list(keys)]
    for name in list(widths)[len(keys) :]:
        part = [*parts[-1], name]
        wide = sum(widths[one] for one in part) + len(_GAP) * (len(part) - 1)
        if wide > _WIDTH and parts[-1] != keys:
            parts.append([*keys, name])
        else:
            parts[-1] = part
    return parts


def _bucket(row: Row) -> dict[str, str]:
    return {"bucket": row.shape.name, "batch": str(row.shape.batch_size)}


def _cells(measured: Measured, tokens: int, peak: float | None) -> dict[str, str]:
    figures = rates(measured, tokens, peak)
    predicted = measured.predicted_mb
    mfu, recompute = figures["mfu"], measured.recompute_flops / measured.model_flops
    return {
        **{name: units.measured(getattr(measured, f"{name}_s")) for name in PHASES},
        "step": units.measured(measured.step_s),
        "first": units.measured(measured.first_s),
        "tokens/s": f"{figures['tokens_per_s']:,.0f}",
        "TFLOP/s": f"{(figures['flops_per_s'] or 0) / 1e12:.3g}",
        "MFU": "-" if mfu is None else f"{100 * mfu:.1f}%",
        "again": f"+{100 * recompute:.0f}%",
        "peak": units.size(measured.peak_bytes),
        "predicted": "-" if predicted is None else units.size(1e6 * predicted),
    }


def _encoder_cells(found: Encoding, share: float | None) -> dict[str, str]:
    return {
        "seconds": units.measured(found.seconds),
        "first": units.measured(found.first_s),
        "TFLOP": f"{found.flops / 1e12:.3g}",
        "peak": units.size(found.peak_bytes),
        "of a step": "-" if share is None else f"{100 * share:.0f}%",
        "weights": found.weights,
    }
