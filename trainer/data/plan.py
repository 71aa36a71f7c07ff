"""The order of an epoch, and where a run stands in it.

An epoch is one global list of microbatches: a pure function of (dataset fingerprint, bucket
configuration, seed, epoch), the same for every number of ranks. A step of W ranks takes the next W
of them, rank r the r-th. So a position is one number, and a run may stop anywhere and go on with
another W: nothing is repeated and nothing is missed.

Tail policy "drop": what does not fill a last step of W microbatches is left out of this epoch, as is
what does not fill a bucket's last microbatch. The next epoch shuffles anew, so other clips are left.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainer.data.balance import Balance
from trainer.data.buckets import Bucket, Buckets
from trainer.data.chance import bits
from trainer.data.content import content_ids
from trainer.data.manifest import Manifest

SCHEMA = 1  # goes up when the same inputs give another order
TAIL = "drop"
_CLIPS, _ORDER = 1, 2  # words that keep the two shuffles of an epoch apart


@dataclass(frozen=True, slots=True)
class Microbatch:
    """What one rank trains on in one step: rows of the manifest, all of one bucket."""

    cell: int  # index into `Buckets.cells`
    rows: NDArray[np.int64]
    first: int  # place of rows[0] in the cell's order of this epoch


@dataclass(frozen=True)
class EpochPlan:
    """All microbatches of an epoch in order."""

    epoch: int
    microbatches: tuple[Microbatch, ...]
    cell_orders: Mapping[int, NDArray[np.int64]]  # cell -> all its rows in this epoch's order
    hash: str  # SHA-256 (hex) of cells and rows in order

    def __len__(self) -> int:
        return len(self.microbatches)

    def substitutes(self, index: int, count: int) -> NDArray[np.int64]:
        """Up to `count` rows to train on in place of bad ones of microbatch `index`, best first.

        They follow the microbatch in its bucket's order, around the end and up to its own rows.
        """
        batch = self.microbatches[index]
        order = self.cell_orders[batch.cell]
        after = batch.first + len(batch.rows) + np.arange(min(count, len(order)))
        return order[after % len(order)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands: `consumed` microbatches of `epoch`, counted over all ranks."""

    epoch: int = 0
    consumed: int = 0

    def after_step(self, world: int) -> Cursor:
        """One optimizer step of `world` ranks later."""
        return replace(self, consumed=self.consumed + world)

    def next_epoch(self) -> Cursor:
        return Cursor(self.epoch + 1, 0)


class DataPlan:
    """The order of every epoch of a data set under a bucket configuration and a seed."""

    def __init__(
        self,
        manifest: Manifest,
        buckets: Buckets,
        seed: int,
        drop_last: bool = True,
        frame_interval: int = 1,
        balance: Balance | None = None,
    ) -> None:
        """`drop_last=False` keeps a bucket's last, smaller microbatch."""
        self.manifest, self.buckets, self.seed = manifest, buckets, seed
        self.drop_last, self.frame_interval, self.balance = drop_last, frame_interval, balance
        self.left_out: tuple[int, NDArray[np.uint64]] | None = None
        self._recent: list[EpochPlan] = []

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of an epoch, first is 0. Two are kept: prefetching reaches into the next one."""
        for plan in self._recent:
            if plan.epoch == epoch:
                return plan
        self._recent = [*self._recent[-1:], self._make(epoch)]
        return self._recent[-1]

    def steps(self, cursor: Cursor, world: int) -> int:
        """Exact number of steps left in the cursor's epoch for `world` ranks."""
        return max(0, len(self.epoch(cursor.epoch)) - cursor.consumed) // world

    def put_into_steps(self, balance: Balance | None) -> None:
        """From now on order epochs so, or at random."""
        self.balance, self._recent = balance, []

    def leave_out(self, epoch: int, ids: NDArray[np.uint64]) -> None:
        """In this epoch only, do without the clips of these content ids: it had them before."""
        self.left_out = (epoch, ids) if len(ids) else None
        self._recent = []

    @cached_property
    def content_ids(self) -> NDArray[np.uint64]:
        """See `trainer.data.content`; made once, when they are first asked for."""
        return content_ids(self.manifest)

    def bucket(self, batch: Microbatch) -> Bucket:
        return self.buckets.cells[batch.cell]

    def _make(self, epoch: int) -> EpochPlan:
        cells = self.buckets.assign(self.manifest, self.seed, epoch, self.frame_interval)
        if self.left_out is not None and self.left_out[0] == epoch:
            cells[np.isin(self.content_ids, self.left_out[1])] = -1
        sizes = {cell: bucket.batch_size for cell, bucket in enumerate(self.buckets.cells)}
        if self.buckets.draw == "upstream":
            from trainer.data.upstream_order import order_epoch  # here: it needs torch

            orders, places = order_epoch(cells, sizes, self.seed, epoch, self.drop_last)
        else:
            orders, places = self._order_epoch(cells, sizes, epoch)
        if self.balance is not None:
            kinds = np.array([cell for cell, _ in places], np.int64)
            places = [places[at] for at in self.balance.order(kinds, self.seed, epoch).tolist()]
        batches = tuple(
            Microbatch(cell, orders[cell][first : first + sizes[cell]], first)
            for cell, first in places
        )
        return EpochPlan(epoch, batches, orders, _hash_of(batches))

    def _order_epoch(
        self, cells: NDArray[np.int32], sizes: Mapping[int, int], epoch: int
    ) -> tuple[dict[int, NDArray[np.int64]], list[tuple[int, int]]]:
        """Rows of each cell in order, and the microbatches as (cell, place of its first row)."""
        rows = np.flatnonzero(cells >= 0)
        # Within a cell the hash decides; equal hashes (1 in 2^64) fall back to row order.
        rows = rows[np.lexsort((bits(rows, self.seed, epoch, _CLIPS), cells[rows]))]
        present, starts = np.unique(cells[rows], return_index=True)
        orders: dict[int, NDArray[np.int64]] = {}
        places: list[tuple[int, int]] = []
        for cell, own in zip(present.tolist(), np.split(rows, starts[1:]), strict=False):
            orders[cell] = own
            stop = len(own) - len(own) % sizes[cell] if self.drop_last else len(own)
            places += [(cell, first) for first in range(0, stop, sizes[cell])]
        keys = bits(np.arange(len(places)), self.seed, epoch, _ORDER)
        return orders, [places[index] for index in np.argsort(keys, kind="stable").tolist()]


def _hash_of(batches: tuple[Microbatch, ...]) -> str:
    digest = hashlib.sha256(str(len(batches)).encode())
    if batches:
        shape = [(batch.cell, len(batch.rows)) for batch in batches]
        digest.update(np.array(shape, "<i4").tobytes())
        digest.update(np.concatenate([batch.rows for batch in batches]).astype("<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class BucketUse:
    """What an epoch makes of one bucket."""

    bucket: Bucket
    clips: int
    microbatches: int
    left_out: int  # clips that do not fill a microbatch


def uses(plan: EpochPlan, buckets: Buckets) -> list[BucketUse]:
    """Every bucket that has clips in this epoch, in the order of the configuration."""
    batches = Counter(batch.cell for batch in plan.microbatches)
    clips: Counter[int] = Counter()
    for batch in plan.microbatches:
        clips[batch.cell] += len(batch.rows)
    return [
        BucketUse(buckets.cells[cell], len(order), batches[cell], len(order) - clips[cell])
        for cell, order in sorted(plan.cell_orders.items())
    ]
