"""Which kernel wins by the number of keys, and the file that `attention_table` names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.bench.attention_shapes import AttentionShape
from trainer.bench.attention_trial import NotAvailable, Timing
from trainer.bench.child import Outcome
from trainer.models.attention.frames import MOST_FRAMES
from trainer.models.attention.table import KERNELS, Rows, Table
from trainer.runlog import units

# A kernel that plans every shape (cuDNN: 0.4 to 1 s) costs minutes: stage 1 has 626 shapes.
MOST_STALL_S = 0.2
MOST_ERROR = 0.02  # bf16 rounds to 0.004; more is wrong


@dataclass(frozen=True, slots=True)
class Result:
    """One kernel on one shape."""

    shape: AttentionShape
    kernel: str
    outcome: Outcome  # of a Timing or NotAvailable

    @property
    def timing(self) -> Timing | None:
        found = self.outcome.measured
        return found if isinstance(found, Timing) else None

    @property
    def reason(self) -> str:
        """Why it cannot win; empty when it can."""
        found = self.outcome.measured
        if isinstance(found, NotAvailable):
            return f"not available: {found.reason}"
        if not isinstance(found, Timing):
            return f"{self.outcome.kind.value}: {self.outcome.reason}"
        if found.new_shape_s > MOST_STALL_S + found.seconds:
            return f"every new shape takes {units.duration(found.new_shape_s)}"
        if not found.error <= MOST_ERROR:  # NaN too
            return f"its numbers are wrong by {found.error:.1e}"
        return ""

    def to_json(self) -> dict[str, Any]:
        shape, timing = self.shape, self.timing
        document = {
            "kind": shape.kind,
            "keys": shape.keys,
            "shape": shape.name,
            "kernel": self.kernel,
            "available": not isinstance(self.outcome.measured, NotAvailable),
            "reason": self.reason,
        }
        if timing is None:
            return document
        return document | {name: getattr(timing, name) for name in timing.__slots__}


def winners(results: Iterable[Result]) -> dict[AttentionShape, Result | None]:
    """The fastest kernel of each shape, forward and backward together; None where none can win."""
    found: dict[AttentionShape, Result | None] = {}
    for result in results:
        best = found.setdefault(result.shape, None)
        if not result.reason and (best is None or _seconds(result) < _seconds(best)):
            found[result.shape] = result
    return found


def rows_of(kind: str, results: Sequence[Result]) -> Rows:
    """(most keys, kernel) with rising keys, equal neighbours as one; () when none was measured.

    The last row has no limit; `frames` takes so many keys only, and the best other kernel follows.
    Of several shapes with the same keys the one with the most tokens decides.
    """
    mine = [result for result in results if result.shape.kind == kind]
    by_keys: dict[int, Result] = {}
    for shape, best in winners(mine).items():
        known = by_keys.get(shape.keys)
        if best is not None and (known is None or known.shape.tokens < shape.tokens):
            by_keys[shape.keys] = best
    rows: list[tuple[int | None, str]] = []
    for keys, best in sorted(by_keys.items()):
        if rows and rows[-1][1] == best.kernel:
            rows.pop()
        rows.append((keys, best.kernel))
    if not rows:
        return ()
    last = rows.pop()[1]
    if last == "frames":
        rows.append((MOST_FRAMES, last))
        largest = by_keys[max(by_keys)].shape
        others = winners(r for r in mine if r.shape == largest and r.kernel != last)
        other = others.get(largest)
        last = other.kernel if other is not None else Table().temporal[-1][1]
    return (*rows, (None, last))


def table_document(results: Sequence[Result], header: Mapping[str, Any]) -> dict[str, Any]:
    """What `read_table` reads, with where it is from; a kind without results keeps its default."""
    rows = {kind: rows_of(kind, results) for kind in KERNELS}
    left_out = [kind for kind in KERNELS if not rows[kind]]
    chosen = {kind: rows[kind] or getattr(Table(), kind) for kind in KERNELS}
    tables = {kind: [list(row) for row in chosen[kind]] for kind in KERNELS}
    return {"schema": 1, **header, "not_measured": left_out, **tables}


def _seconds(result: Result) -> float:
    assert result.timing is not None
    return result.timing.seconds
