"""Clips that cannot be read because their storage fails, not because they are bad.

A file server that starts again gives errors for a minute. Clips that were refused for that would be
lost to the run; they are tried again instead, so the microbatch is the same as ever.
"""

from __future__ import annotations

import math
import time

OUT_S = 60.0  # while nothing can be read; less than a batch may take
ALIVE_S = 5.0  # where other clips of the batch can be read: it is this file that fails
LONG_OUT_S = 600.0  # of tools that look into every clip: no rank waits for them
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0


class Outage:
    """Of one batch."""

    def __init__(self, deadline: float = math.inf, out_s: float | None = None) -> None:
        """`deadline` is that of the batch, by the monotonic clock; `out_s` is used for OUT_S."""
        self._deadline, self._out_s = deadline, OUT_S if out_s is None else out_s
        self._since_s, self._pause_s, self._is_alive = 0.0, FIRST_PAUSE_S, False

    def lasts(self, was_read: bool) -> bool:
        """Whether to try again, after a wait. The storage failed for a clip in the last try;
        `was_read` says whether another clip of the batch could be read in it."""
        now = time.monotonic()
        self._since_s = self._since_s or now
        self._is_alive = self._is_alive or was_read
        end = min(self._deadline, self._since_s + (ALIVE_S if self._is_alive else self._out_s))
        if now + self._pause_s >= end:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True
