"""Which checkpoints of a run are sampled. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.runlog.checkpoint_name import epoch_and_step


@dataclass(frozen=True, slots=True)
class Sealed:
    """A complete checkpoint. `stamp` changes when another one takes its name."""

    name: str
    sealed_s: float  # unix time of its manifest, by the clock of its file system
    stamp: str = ""

    @property
    def epoch(self) -> int:
        return _numbers(self.name)[0]

    @property
    def step(self) -> int:
        return _numbers(self.name)[1]


def is_name(text: str) -> bool:
    """Whether a folder of this name can be a checkpoint."""
    return epoch_and_step(text) is not None


def _numbers(name: str) -> tuple[int, int]:
    found = epoch_and_step(name)
    assert found is not None, name
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """What the options leave: all, by default. Several options leave what each of them leaves."""

    after_step: int = -1  # only steps above it
    every: int = 1  # only steps that are multiples of it
    first_of_epoch: bool = False  # only the lowest step of each epoch

    def of(self, sealed: Sequence[Sealed]) -> list[Sealed]:
        """In the order of their steps."""
        ordered = sorted(sealed, key=lambda one: (one.step, one.epoch))
        firsts: dict[int, str] = {}
        for one in ordered:
            firsts.setdefault(one.epoch, one.name)
        return [
            one
            for one in ordered
            if one.step > self.after_step
            and one.step % self.every == 0
            and (not self.first_of_epoch or firsts[one.epoch] == one.name)
        ]
