"""What of a model was loaded: counts by prefix, folded, for people and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_NUMBER = re.compile(r"\.(\d+)\.")


def prefix_of(name: str) -> str:
    """`spatial_blocks.7.attn.qkv.weight` -> `spatial_blocks.#`; a single name's first part else."""
    match = _NUMBER.search(name)
    head = name[: match.start()] if match else name
    first = head.split(".")[0]
    # t_block.1 is no row of blocks
    return f"{first}.#" if head == first and head.endswith(("blocks", "layers")) else first


def fold(names: Iterable[str]) -> list[tuple[str, int]]:
    """(prefix, count) in order of first sight; numbered parts become a range: `blocks.[0-27]`."""
    counts: dict[str, int] = {}
    numbers: dict[str, set[int]] = {}
    for name in names:
        prefix = prefix_of(name)
        counts[prefix] = counts.get(prefix, 0) + 1
        match = _NUMBER.search(name)
        if match and prefix.endswith("#"):
            numbers.setdefault(prefix, set()).add(int(match[1]))
    return [(_shown(prefix, numbers.get(prefix, set())), count) for prefix, count in counts.items()]


def _shown(prefix: str, numbers: set[int]) -> str:
    if not numbers:
        return prefix
    low, high = min(numbers), max(numbers)
    inside = str(low) if low == high else f"{low}-{high}"
    if len(numbers) < high - low + 1:
        inside = ",".join(map(str, sorted(numbers)))
    return f"{prefix[:-1]}[{inside}]"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Names by what became of them. `new` are those that the source's kind does not have."""

    source: str
    model: str  # what the weights are
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()  # name, is, should be
    new: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # the source's, of no use to this model
    notes: tuple[str, ...] = field(default=())

    @property
    def expected(self) -> int:
        """Tensors that the source should give."""
        return len(self.loaded) + len(self.missing) + len(self.mismatched)

    @property
    def share(self) -> float:
        """0..1: of what the source should give, or of what it has, whichever fits less."""
        has = len(self.loaded) + len(self.unexpected) + len(self.mismatched)
        return len(self.loaded) / max(1, self.expected, has)

    @property
    def is_whole(self) -> bool:
        """Every tensor of the model is the source's, and the other way round."""
        rest = (self.missing, self.unexpected, self.mismatched, self.new, self.left_out)
        return bool(self.loaded) and not any(rest)

    def summary(self) -> str:
        """One line."""
        text = f"{self.model} from {self.source}: {len(self.loaded)} of {self.expected} tensors"
        if self.new:
            text += f", {len(self.new)} are new"
        return text

    def lines(self) -> Iterator[str]:
        """The report by prefix, one line per outcome that occurred."""
        shapes = [f"{name} {_size(got)} for {_size(want)}" for name, got, want in self.mismatched]
        for word, names in (
            ("loaded", self.loaded),
            ("new", self.new),
            ("left out", self.left_out),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
        ):
            if names:
                parts = ", ".join(f"{prefix} {count}" for prefix, count in fold(names))
                yield f"  {word:<10} {len(names):>4}  {parts}"
        if shapes:
            more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
            yield f"  {'misshapen':<10} {len(shapes):>4}  {'; '.join(shapes[:3])}{more}"
        for note in self.notes:
            yield f"  {note}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json` and a run's events."""
        outcomes = ("loaded", "missing", "unexpected", "new", "left_out")
        return {
            "source": self.source,
            "model": self.model,
            "share": self.share,
            **{name: dict(fold(getattr(self, name))) for name in outcomes},
            "mismatched": [
                {"name": n, "is": list(a), "should_be": list(b)} for n, a, b in self.mismatched
            ],
            "notes": list(self.notes),
        }


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
