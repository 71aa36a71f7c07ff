"""How far a node's clock stands from the head's, from questions and answers on its stream. Pure.

The answer was given somewhere between question and arrival, so the offset is known to half of the
round trip; of the last questions the quickest one counts.
"""

from __future__ import annotations

KEPT = 8


class ClockOffset:
    """Node minus head of one node. Times are the head's and the node's wall clocks."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []  # (bound, offset), oldest first

    def add(self, asked_s: float, node_s: float, heard_s: float) -> None:
        """An answer: asked and heard by the head's clock, given by the node's."""
        bound = (heard_s - asked_s) / 2
        if bound < 0:  # the head's own clock jumped in between
            self._seen.clear()
            return
        offset = node_s - (asked_s + heard_s) / 2
        # What cannot be true together means that a clock jumped: what was known before is void.
        if any(abs(offset - old) > bound + other + 0.001 for other, old in self._seen):
            self._seen.clear()
        self._seen = [*self._seen, (bound, offset)][-KEPT:]

    def best(self) -> tuple[float | None, float | None]:
        """(offset, bound) in seconds; (None, None) before the first answer."""
        if not self._seen:
            return None, None
        bound, offset = min(self._seen)
        return offset, bound
