"""What of a model was loaded: counts by prefix, folded, for people and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_ROW = re.compile(r"[^.]*(blocks|layers)\.\d+\.")  # of blocks; t_block.1 is none


def by_prefix(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by prefix, in order of first sight; numbered parts as a range: `blocks.[0-27]`."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for name in names:
        groups.setdefault((name.split(".")[0], bool(_ROW.match(name))), []).append(name)
    named = {(first, True): _with_range(first, own) for (first, row), own in groups.items() if row}
    return {named.get(key, key[0]): members for key, members in groups.items()}


def _with_range(first: str, names: Iterable[str]) -> str:
    numbers = sorted({int(name.split(".")[1]) for name in names})
    inside = ",".join(map(str, numbers))
    if 1 < len(numbers) == numbers[-1] - numbers[0] + 1:
        inside = f"{numbers[0]}-{numbers[-1]}"
    return f"{first}.[{inside}]"


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
    notes: tuple[str, ...] = ()

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
        text = f"{self.model} from {self.source}: {len(self.loaded)} of {self.expected} tensors"
        return text + (f", {len(self.new)} are new" if self.new else "")

    def lines(self) -> Iterator[str]:
        """The report by prefix, one line per outcome that occurred."""
        for outcome in ("loaded", "new", "left_out", "missing", "unexpected"):
            if names := getattr(self, outcome):
                counts = [f"{prefix} {len(found)}" for prefix, found in by_prefix(names).items()]
                yield _line(outcome.replace("_", " "), len(names), ", ".join(counts))
        shapes = [f"{name} {_size(got)} for {_size(want)}" for name, got, want in self.mismatched]
        if shapes:
            more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
            yield _line("misshapen", len(shapes), "; ".join(shapes[:3]) + more)
        for note in self.notes:
            yield f"  {note}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json` and a run's events."""
        outcomes = ("loaded", "missing", "unexpected", "new", "left_out")
        counts = {
            outcome: {p: len(names) for p, names in by_prefix(getattr(self, outcome)).items()}
            for outcome in outcomes
        }
        return {
            "source": self.source,
            "model": self.model,
            "share": self.share,
            **counts,
            "mismatched": [
                {"name": n, "is": list(a), "should_be": list(b)} for n, a, b in self.mismatched
            ],
            "notes": list(self.notes),
        }


def _line(outcome: str, count: int, text: str) -> str:
    return f"  {outcome:<10} {count:>4}  {text}"


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
