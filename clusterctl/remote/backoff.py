"""How long to wait before a lost node is asked again."""

from __future__ import annotations

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
STEADY_S = 60.0


class Pauses:
    """Of one node: 1, 2, 4, 8, 8 … seconds; from the first again after a connection that was steady."""

    def __init__(self) -> None:
        self._lost = 0

    def after(self, lasted_s: float) -> float:
        """Seconds to wait now that a connection, or the attempt to get one, has ended after `lasted_s`."""
        if lasted_s > STEADY_S:
            self._lost = 0
        pause_s = PAUSES_S[min(self._lost, len(PAUSES_S) - 1)]
        self._lost += 1
        return pause_s
