"""The time of what is played again: it runs at a speed, stands still, and goes to any moment."""

from __future__ import annotations

from collections.abc import Callable


class Player:
    """What a recording and a run directory have in common when they are played."""

    def __init__(
        self, first_s: float, last_s: float, *, clock: Callable[[], float], speed: float
    ) -> None:
        """From `first_s` to `last_s`, in seconds of unix time; `clock` is the viewer's time."""
        self.first_s, self.last_s = first_s, last_s
        self._clock = clock
        self._speed, self._paused = speed, False
        self.start()

    def start(self) -> None:
        self._base_s, self._since = self.first_s, self._clock()  # the time played at `_since`

    @property
    def span(self) -> tuple[float, float]:
        """Beginning and end, in seconds of unix time."""
        return self.first_s, self.last_s

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def speed(self) -> float:
        """Seconds of the past in a second; 0 while it is paused."""
        return 0.0 if self._paused else self._speed

    def now(self) -> float:
        passed = (self._clock() - self._since) * self.speed
        return max(self.first_s, min(self.last_s, self._base_s + passed))

    def settled(self) -> bool:
        return True

    def pause(self) -> None:
        """Stop the time, or let it go on."""
        self._hold()
        self._paused = not self._paused

    def faster(self, factor: float) -> None:
        self._hold()
        self._speed = min(1e6, max(0.1, self._speed * factor))

    def seek(self, seconds: float) -> None:
        """Forth, or back."""
        self.seek_to(self.now() + seconds)

    def seek_to(self, at_s: float) -> None:
        before = self.now()
        self._base_s = min(self.last_s, max(self.first_s, at_s))
        self._since = self._clock()
        if self._base_s < before:
            self._rewind()

    def seek_end(self) -> None:
        self.seek_to(self.last_s)

    def _hold(self) -> None:
        self._base_s, self._since = self.now(), self._clock()

    def _rewind(self) -> None:
        """What was told of later moments does not count any more."""
        raise NotImplementedError
