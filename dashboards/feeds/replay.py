"""Recordings and run directories played again: back and forth, at any speed, paused."""

from __future__ import annotations

from pathlib import Path

from dashboards.feeds.run_dir import as_sample, opened, timed_records
from dashboards.model.samples import Clock, Feed, Restored, Sample, Tick
from dashboards.recording.reader import Place, Recorded

AT_ONCE = 600  # readings folded in one drain, about 50 ms


class Player(Feed):
    """The time of what is played, from `first_s` to `last_s` (unix); `clock` is the viewer's."""

    def __init__(self, first_s: float, last_s: float, *, clock: Clock, speed: float) -> None:
        self.first_s, self.last_s = first_s, last_s
        self._clock = clock
        self._speed, self._paused = speed, False
        self.start()

    def start(self) -> None:
        self._base_s, self._since = self.first_s, self._clock()  # the time played at `_since`

    @property
    def speed(self) -> float:
        """Seconds of the past in a second; 0 while it is paused."""
        return 0.0 if self._paused else self._speed

    def now(self) -> float:
        passed = (self._clock() - self._since) * self.speed
        return max(self.first_s, min(self.last_s, self._base_s + passed))

    def pause(self) -> None:
        """Pause, or continue."""
        self._hold()
        self._paused = not self._paused

    def faster(self, factor: float) -> None:
        self._hold()
        self._speed = min(1e6, max(0.1, self._speed * factor))

    def seek_to(self, at_s: float) -> None:
        before = self.now()
        self._base_s, self._since = min(self.last_s, max(self.first_s, at_s)), self._clock()
        if self._base_s < before:
            self._rewind()

    def seek_end(self) -> None:
        self.seek_to(self.last_s)

    def _hold(self) -> None:
        self._base_s, self._since = self.now(), self._clock()

    def _rewind(self) -> None:
        """Forget what was given for later times."""
        raise NotImplementedError


class Replay(Player):
    """A Feed over the file of a recording.

    At a slow speed the samples come as they came then; where the time jumps, or runs so fast that
    folding all of them would hold up the screen, one sample restores the whole state.
    """

    def __init__(self, path: Path, *, clock: Clock, speed: float = 1.0) -> None:
        """Raises `OSError`; `UsageError` for a file that is no recording."""
        self._recorded = Recorded(path)
        super().__init__(self._recorded.first_s, self._recorded.last_s, clock=clock, speed=speed)
        self._place: Place | None = None  # None: the next drain restores
        self._seen_s = self._given_s = self.first_s  # of the last drain, of its newest round
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
        for at_s, reported in self._recorded.rounds(self._place, now):
            samples += [*reported, Tick(at_s)]
            self._given_s = at_s
        if self._recorded.next_time(self._place) is None:
            begins_s = self._recorded.key_after(self._given_s)
            if begins_s is not None and begins_s <= now:
                return self._restore(now)
        return samples

    def _restore(self, now: float) -> list[Sample]:
        state, self._place = self._recorded.state_at(now)
        self._seen_s, self._given_s = now, state.now_s
        return [Restored(state)]

    def _rewind(self) -> None:
        self._place = None

    def close(self) -> None:
        self._recorded.close()


class ReplayFeed(Player):
    """Plays a run directory again with its own times."""

    nodes: tuple[str, ...] = ()  # a run directory holds no readings of nodes
    source = "replay"

    def __init__(self, run_dir: Path, *, clock: Clock, speed: float = 10.0) -> None:
        """Reads the whole directory. Raises `OSError` when it cannot."""
        timed = timed_records(run_dir)
        # A hair before the first record: the first drain shows a run without records.
        first_s = timed[0][0] - 0.001 if timed else 0.0
        super().__init__(first_s, timed[-1][0] if timed else 0.0, clock=clock, speed=speed)
        self._timed = [
            (first_s, opened(run_dir, first_s)),
            *((at_s, as_sample(record, at_s, source)) for at_s, record, source in timed),
        ]
        self._next = 0

    def drain(self) -> list[Sample]:
        now, begin = self.now(), self._next
        while self._next < len(self._timed) and self._timed[self._next][0] <= now:
            self._next += 1
        return [sample for _, sample in self._timed[begin : self._next]]

    def _rewind(self) -> None:
        self._next = 0


def open_replay(path: Path, *, clock: Clock, speed: float | None = None) -> Replay | ReplayFeed:
    """A recording's file or a run directory; without `speed` a run plays at ten times its speed.

    Raises `OSError`; `UsageError` for a file that is no recording.
    """
    kind = ReplayFeed if path.is_dir() else Replay
    return kind(path, clock=clock) if speed is None else kind(path, clock=clock, speed=speed)
