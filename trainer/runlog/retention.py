"""Which checkpoints a run keeps, when it saves, and what all of them take on the disk.

Standard library only: the trainer deletes by these rules, and `clusterctl plan-checkpoints`
predicts by them.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# Kept free beside the tensors of a save: for documents, indexes, the file system's own.
OVERHEAD_BYTES = 64 << 20
MOST_SAVES = 100_000  # of one run that are counted through, in 0.1 s


@dataclass(frozen=True, slots=True)
class Rules:
    """Keys of a config that decide about checkpoints; see trainer/config/keys.py."""

    ckpt_every: int = 0  # steps; 0: only at the end
    keep_checkpoints: int = -1  # newest ones; -1: all
    keep_every: int = 0  # beside them, those of every n-th step; 0: none
    ckpt_at_epoch_end: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether the number of checkpoints does not grow with the length of the run."""
        return self.keep_checkpoints >= 1 and not self.keep_every


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Bytes on the disk, of checkpoints alone; `more` is in addition to those held at the start."""

    more_peak_bytes: int  # while the save is written that needs most
    peak_step: int | None  # of that save; None without one
    end_bytes: int  # all that remain
    saves: int
    kept: int  # checkpoints that remain


def outdated(steps: Sequence[int], keep: int, every: int = 0) -> list[int]:
    """Indices of checkpoints to delete, given their steps in the order in which they were made.

    The `keep` newest are kept, and beside them those of every `every`-th step; `keep` below 1
    keeps all.
    """
    if keep < 1:
        return []
    older = steps[: max(0, len(steps) - keep)]
    return [index for index, step in enumerate(older) if not every or step % every]


def save_steps(
    first: int, last: int, rules: Rules, epoch_steps: int | None = None
) -> Iterator[int]:
    """Steps after `first` up to `last` at which a run saves; the last step is always among them.

    `epoch_steps` is the length of an epoch; epochs are taken to be equally long.
    """
    if last <= first:
        return
    every, epoch = rules.ckpt_every, epoch_steps if rules.ckpt_at_epoch_end else None
    rows = [range(first - first % n + n, last, n) for n in (every, epoch) if n]
    previous = None
    for step in heapq.merge(*rows, [last]):
        if step != previous:
            yield step
        previous = step


def disk_need(
    held: Sequence[tuple[int, int]],
    saves: Iterable[int],
    size_bytes: int,
    extra_bytes: int,
    rules: Rules,
) -> DiskNeed:
    """What is needed beside `held`, (step, bytes) of checkpoints in the order they were made.

    While a checkpoint is written it takes `size_bytes` + `extra_bytes`; old ones are deleted after
    that. Raises ValueError for more than MOST_SAVES saves.
    """
    keep, every = rules.keep_checkpoints, rules.keep_every
    newest = deque(held)
    before = total = sum(size for _, size in held)
    peak, peak_step, forever, count = 0, None, 0, 0
    for count, step in enumerate(itertools.islice(saves, MOST_SAVES + 1), 1):
        if count > MOST_SAVES:
            raise ValueError(f"it saves more than {MOST_SAVES:,} times")
        if total + size_bytes + extra_bytes - before > peak:
            peak, peak_step = total + size_bytes + extra_bytes - before, step
        newest.append((step, size_bytes))
        total += size_bytes
        while keep >= 1 and len(newest) > keep:
            old, size = newest.popleft()
            if every and old % every == 0:
                forever += 1
            else:
                total -= size
    kept = len(newest) + forever
    return DiskNeed(peak, peak_step, total, count, kept)


def largest_keep(
    held: Sequence[tuple[int, int]],
    saves: Sequence[int],
    size_bytes: int,
    extra_bytes: int,
    rules: Rules,
    free_bytes: int,
) -> int | None:
    """The largest `keep_checkpoints` with which it fits; None when not even 1 does.

    Raises ValueError as `disk_need`.
    """

    def fits(keep: int) -> bool:
        own = Rules(rules.ckpt_every, keep, rules.keep_every, rules.ckpt_at_epoch_end)
        need = disk_need(held, saves, size_bytes, extra_bytes, own)
        return need.more_peak_bytes <= free_bytes

    low, high = 0, len(held) + len(saves)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None
