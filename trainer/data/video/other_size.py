"""Clips whose files have another height and width than their manifest says: used, and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.runlog.output import LOG

_SHOWN = 5  # clips of each rank
_ADVICE = "python -m trainer.data check lists such clips, probe makes a new manifest"


def other_size(stated: Sequence[int], size: Sequence[int]) -> str:
    """How a file's height and width differ from what decided its bucket; "" where they do not, or
    are not known."""
    if not size or not stated or tuple(size) == tuple(stated):
        return ""
    found, said = (f"{height}x{width}" for height, width in (size, stated))
    return f"it is {found} (height x width), the manifest says {said}"


class OtherSizes:
    """Tells the first of them: the others are as wrong, or the whole manifest is."""

    def __init__(self, rank: int, done: str, before: Callable[[], None] = lambda: None) -> None:
        """`done` is what is done with such a clip; `before` is called before a line is written."""
        self._rank, self._done, self._before = rank, done, before
        self._told: set[str] = set()

    def tell(self, path: str, why: str) -> None:
        if path in self._told or len(self._told) >= _SHOWN:
            return
        self._told.add(path)
        text = f"it is {self._done}, scaled and cut to the bucket of the manifest's size"
        more = "; further ones are not told" if len(self._told) == _SHOWN else ""
        self._before()
        LOG.warning(
            "warning: rank %d: %s: %s; %s (%s)%s", self._rank, path, why, text, _ADVICE, more
        )
