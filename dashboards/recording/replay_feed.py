"""A recording played again: back and forth, at any speed, paused.

While the time runs slowly enough the samples come as they came then; where it jumps, or runs so
fast that folding all of them would hold up the screen, one sample restores the state whole.
"""

from __future__ import annotations

from pathlib import Path

from dashboards.feeds.base import Clock, ReplayFeed
from dashboards.feeds.playback_clock import Player
from dashboards.model.samples import Restored, Sample, Tick
from dashboards.recording.reader import Place, Recorded

AT_ONCE = 600  # readings folded in one round of the screen, about 50 ms


class Replay(Player):
    """A Feed over the file that `record.Recording` wrote."""

    def __init__(self, path: Path, *, clock: Clock, speed: float = 1.0) -> None:
        """Raises `OSError`; `UsageError` for what is no recording."""
        self._recorded = Recorded(path)
        super().__init__(self._recorded.first_s, self._recorded.last_s, clock=clock, speed=speed)
        self._place: Place | None = None  # None: the next drain restores
        self._seen_s = self.first_s
        self._told_s = self.first_s  # of the last round that was given
        self.nodes = self._recorded.nodes
        self.source = f"replay {path.name}"

    @property
    def note(self) -> str:
        """What of the file could not be read so far; "" nothing."""
        return self._recorded.damage

    def drain(self) -> list[Sample]:
        """Rounds up to now, each with its time; or the state as it is now.

        Raises `UsageError` when the file can no longer be read.
        """
        now = self.now()
        if self._place is None or (now - self._seen_s) * max(1, len(self.nodes)) > AT_ONCE:
            return self._restore(now)
        self._seen_s = now
        samples: list[Sample] = []
        while (next_s := self._recorded.next_time(self._place)) is not None and next_s <= now:
            found = self._recorded.read_round(self._place)
            if found is None:
                break
            samples += found[1]
            samples.append(Tick(found[0]))
            self._told_s = found[0]
        if next_s is None:
            begins_s = self._recorded.key_after(self._told_s)
            if begins_s is not None and begins_s <= now:
                return self._restore(now)
        return samples

    def _restore(self, now: float) -> list[Sample]:
        state, self._place = self._recorded.state_at(now)
        self._seen_s, self._told_s = now, state.now_s
        return [Restored(state)]

    def _rewind(self) -> None:
        self._place = None

    def close(self) -> None:
        self._recorded.close()


def open_replay(path: Path, *, clock: Clock, speed: float | None = None) -> Replay | ReplayFeed:
    """A recording's file or a run directory; without `speed` a run plays at ten times its speed.

    Raises `OSError`; `UsageError` for a file that is no recording.
    """
    if path.is_dir():
        return ReplayFeed(path, clock=clock, speed=10.0 if speed is None else speed)
    return Replay(path, clock=clock, speed=1.0 if speed is None else speed)
