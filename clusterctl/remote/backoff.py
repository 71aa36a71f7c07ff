"""How long to wait before connecting to a lost node again."""

from __future__ import annotations


class Pauses:
    """For one node: 1, 2, 4, 8, 8 … seconds; the first again after a connection that lasted."""

    def __init__(self, first_s: float = 1.0, most_s: float = 8.0, steady_s: float = 60.0) -> None:
        self._first_s, self._most_s, self._steady_s = first_s, most_s, steady_s
        self._next_s = first_s

    def after(self, lasted_s: float) -> float:
        """Seconds to wait now that a connection, or an attempt, has ended after `lasted_s`."""
        pause_s = self._first_s if lasted_s > self._steady_s else self._next_s
        self._next_s = min(self._most_s, 2 * pause_s)
        return pause_s
