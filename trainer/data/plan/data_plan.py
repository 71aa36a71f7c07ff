"""The order of an epoch, and where a run stands in it.

An epoch is one global list of microbatches: a pure function of (dataset fingerprint, bucket
configuration, seed, epoch), whatever the number of ranks. balance.py then puts microbatches of
equal cost into one step, by the ranks of a step; a resumed run keeps its epoch's order. A step of
W ranks takes the next W, rank r the r-th: a position is one number, and a run may go on
with another W. What does not fill a bucket's last microbatch, or a last step, is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainer.config.keys import Config
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.places import is_spelled_in_one_way, whole_path
from trainer.data.manifest.shared import Ranks, once
from trainer.data.plan.balance import Balance
from trainer.data.plan.buckets import Bucket, Buckets, Ints, Keys, bits
from trainer.data.plan.unplaced import unplaced

SCHEMA = 2  # goes up when the same inputs give another order
_CLIPS, _ORDER, _CONTENT = 1, 2, 6  # words that keep draws apart, see buckets.bits


@dataclass(frozen=True, slots=True)
class Microbatch:
    """What one rank trains on in one step: rows of the manifest, all of one bucket."""

    cell: int  # index into `Buckets.cells`
    rows: Ints
    first: int  # place of rows[0] in the cell's order of this epoch


@dataclass(eq=False)
class EpochPlan:
    """All microbatches of an epoch in order, cut from the arrays on access."""

    epoch: int
    cell_orders: Mapping[int, Ints]  # all rows of each cell in this epoch's order
    cells: Ints  # of each microbatch [M], as the two below
    firsts: Ints  # places of their first rows in the order of the cell
    sizes: Ints
    held_out: int = 0  # clips that are kept for validation and have a place in a bucket

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: int) -> Microbatch:
        cell, first = int(self.cells[index]), int(self.firsts[index])
        rows = self.cell_orders[cell][first : first + int(self.sizes[index])]
        return Microbatch(cell, rows, first)

    def rows(self, count: int | None = None) -> Ints:
        """Rows of the first `count` microbatches, or of all, one after another [N]."""
        if not len(self.cells[:count]):
            return np.empty(0, np.int64)
        present, orders = list(self.cell_orders), list(self.cell_orders.values())
        begin = np.zeros(max(present) + 1, np.int64)
        begin[present] = np.cumsum([0, *map(len, orders[:-1])])
        sizes = self.sizes[:count]
        starts = begin[self.cells[:count]] + self.firsts[:count]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.concatenate(orders)[np.repeat(starts, sizes) + within]

    def left_out(self, clips: int, each: int, consumed: int = 0) -> dict[str, int]:
        """How many of `clips` this epoch does not train on, by reason, in steps of `each` after the
        first `consumed` microbatches, which other numbers of ranks may have had."""
        in_buckets = sum(map(len, self.cell_orders.values()))
        return {
            "in no bucket of this epoch": clips - in_buckets - self.held_out,
            "kept for validation": self.held_out,
            "too few for a microbatch": in_buckets - int(self.sizes.sum()),
            "too few for a step": int(
                self.sizes[len(self) - (len(self) - consumed) % each :].sum()
            ),
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of cells, sizes and rows in order."""
        digest = hashlib.sha256(str(len(self)).encode())
        for array, kind in ((self.cells, "<i4"), (self.sizes, "<i4"), (self.rows(), "<i8")):
            digest.update(np.ascontiguousarray(array, kind).tobytes())
        return digest.hexdigest()

    def substitutes(self, index: int, count: int) -> Ints:
        """Up to `count` rows that follow microbatch `index` in its bucket's order, cyclic."""
        batch = self[index]
        order = self.cell_orders[batch.cell]
        after = batch.first + len(batch.rows) + np.arange(min(count, len(order)))
        return order[after % len(order)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands: `consumed` microbatches of `epoch`, counted over all ranks."""

    epoch: int = 0
    consumed: int = 0

    def after_step(self, world: int) -> Cursor:
        return Cursor(self.epoch, self.consumed + world)

    def next_epoch(self) -> Cursor:
        return Cursor(self.epoch + 1, 0)


@dataclass(eq=False)
class DataPlan:
    """The order of every epoch of a data set under a bucket configuration and a seed."""

    manifest: Manifest
    buckets: Buckets
    seed: int
    frame_interval: int = 1
    balance: Balance | None = None
    held_out: float = 0.0  # share of the clips that no epoch has, see held_out.py
    left_out: tuple[int, NDArray[np.uint64]] | None = field(default=None, init=False)
    # epoch, first and end of microbatches that no step was made of, in checkpoints for people
    skipped: list[tuple[int, int, int]] = field(default_factory=list, init=False)
    _recent: list[EpochPlan] = field(default_factory=list, init=False)

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of an epoch, first is 0. Two are kept: prefetching reaches into the next one."""
        for plan in self._recent:
            if plan.epoch == epoch:
                return plan
        self.take_over(self._make(epoch))
        return self._recent[-1]

    def steps(self, cursor: Cursor, world: int) -> int:
        """Exact number of steps left in the cursor's epoch for `world` ranks."""
        return max(0, len(self.epoch(cursor.epoch)) - cursor.consumed) // world

    def take_over(self, made: EpochPlan) -> None:
        """Use this epoch's plan, which another rank made from equal inputs."""
        others = [plan for plan in self._recent if plan.epoch != made.epoch]
        self._recent = [*others[-1:], made]

    def put_into_steps(self, balance: Balance | None) -> None:
        """Order the steps of all epochs by this balance, or at random for None."""
        if balance != self.balance:
            self.balance, self._recent = balance, []

    def leave_out(self, epoch: int, ids: NDArray[np.uint64]) -> None:
        """In this epoch only, do without the clips of these content ids: it had them before."""
        if self.left_out is None and not len(ids):
            return  # plans that were made stay good
        self.left_out = (epoch, ids) if len(ids) else None
        self._recent = []

    @cached_property
    def held_out_rows(self) -> NDArray[np.bool_]:
        """Which rows are kept for validation [N]; by path alone, so that a clip that stands in the
        manifest twice, in whatever spelling, is never on both sides."""
        kept = path_hashes(self.manifest) < np.uint64(self.held_out * 2.0**64)
        if is_spelled_in_one_way(self.manifest.paths):
            return kept
        root = str(self.manifest.root)
        files = hashes_of(whole_path(root, path) for path in self.manifest.paths)
        return np.isin(files, files[kept])

    def unplaced(self) -> str:
        """Why clips have no place in any epoch, as words; "" where all have one in some epoch."""
        reasons = unplaced(self.manifest, self.buckets, self.frame_interval)
        return f"of {len(self.manifest):,} clips {', '.join(reasons)}" if reasons else ""

    def keys(self, rows: Ints) -> Keys:
        """What random draws about these rows are made of."""
        return rows

    @cached_property
    def content_ids(self) -> NDArray[np.uint64]:
        """Made once, when they are first asked for."""
        return content_ids(self.manifest)

    def _make(self, epoch: int) -> EpochPlan:
        cells = self.buckets.assign(self.manifest, self.seed, epoch, self.frame_interval)
        if self.left_out is not None and self.left_out[0] == epoch:
            cells[np.isin(self.content_ids, self.left_out[1])] = -1
        held_out = 0
        if self.held_out:
            held_out = int((cells[self.held_out_rows] >= 0).sum())
            cells[self.held_out_rows] = -1
        sizes = np.array([bucket.batch_size for bucket in self.buckets.cells], np.int64)
        orders = self.shuffled(cells, epoch)
        kinds, firsts = self.cut(orders, sizes, epoch)
        if self.balance is not None:
            order = self.balance.order(kinds, self.seed, epoch)
            kinds, firsts = kinds[order], firsts[order]
        return EpochPlan(epoch, orders, kinds, firsts, sizes[kinds], held_out)

    def shuffled(self, cells: NDArray[np.int32], epoch: int) -> dict[int, Ints]:
        """Rows of each cell in the order of their hashes; where those agree, in order of rows."""
        rows = np.flatnonzero(cells >= 0)
        # Cell, hash and row in one number: sorting numbers is many times faster than by keys.
        row_bits = max(1, len(cells) - 1).bit_length()
        cell_bits = max(1, len(self.buckets.cells) - 1).bit_length()
        keys = bits(rows, self.seed, epoch, _CLIPS) >> np.uint64(cell_bits + row_bits)
        keys = keys << np.uint64(row_bits) | rows.astype(np.uint64)
        keys |= cells[rows].astype(np.uint64) << np.uint64(64 - cell_bits)
        keys.sort()
        rows = (keys & np.uint64((1 << row_bits) - 1)).astype(np.int64)
        present, starts = np.unique(keys >> np.uint64(64 - cell_bits), return_index=True)
        return dict(zip(present.tolist(), np.split(rows, starts[1:]), strict=False))

    def cut(self, orders: Mapping[int, Ints], sizes: Ints, epoch: int) -> tuple[Ints, Ints]:
        """Microbatches in random order: their cells, and places of their first rows."""
        counts = [len(rows) // int(sizes[cell]) for cell, rows in orders.items()]
        cells = np.repeat(np.array(list(orders), np.int64), counts)
        places = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])
        order = np.argsort(bits(np.arange(len(cells)), self.seed, epoch, _ORDER), kind="stable")
        return cells[order], (places * sizes[cells])[order]


def plan_for(config: Config, manifest: Manifest) -> DataPlan:
    """What a run of this config trains on."""
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    interval, share = config.dataset.frame_interval, config.validation.share
    return DataPlan(manifest, buckets, config.seed, interval, held_out=share)


def path_hashes(manifest: Manifest) -> NDArray[np.uint64]:
    """64 bits of each row's path as the manifest writes it [N]."""
    return hashes_of(manifest.paths)


def hashes_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """64 bits of each text [N], BLAKE2b."""
    names = (text.encode("utf-8", "surrogateescape") for text in texts)
    digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def content_ids(manifest: Manifest) -> NDArray[np.uint64]:
    """64 bits for each row [N], which survive a change of the data set around it. A clip is its
    path as the manifest writes it; where a path stands more than once, the n-th of them. About 1 s
    of CPU a million; two of 10 million are equal by chance once in 370,000 data sets (birthday
    bound)."""
    ids = path_hashes(manifest)
    order = np.argsort(ids, kind="stable")
    new = np.ones(len(ids), bool)
    new[1:] = np.diff(ids[order]) != 0
    first = np.maximum.accumulate(np.where(new, np.arange(len(ids)), 0))
    occurrence = np.empty(len(ids), np.int64)
    occurrence[order] = np.arange(len(ids)) - first
    return np.where(occurrence == 0, ids, ids ^ bits(occurrence, _CONTENT))


def plan_once(ranks: Ranks, plan: DataPlan, epoch: int, ids: bool = False) -> list[str]:
    """Plan an epoch once on each machine, with `ids` also `plan.content_ids` (collective). Returns
    what to say where it could not be shared. The ranks' plans must be of equal inputs. Each rank
    plans later epochs itself (0.7 s of processor time for 1.3 million rows): ranks would have to
    meet for them, and one that has ended would keep the others waiting."""
    content: NDArray[np.uint64] | None
    held_out: NDArray[np.bool_] | None

    def make() -> tuple[EpochPlan, NDArray[np.uint64] | None, NDArray[np.bool_] | None]:
        held_out = plan.held_out_rows if plan.held_out else None
        return plan.epoch(epoch), plan.content_ids if ids else None, held_out

    (made, content, held_out), notes = once(ranks, make, "the data plan")
    plan.take_over(made)
    if content is not None:
        plan.content_ids = content
    if held_out is not None:
        plan.held_out_rows = held_out
    return notes


@dataclass(frozen=True, slots=True)
class BucketUse:
    bucket: Bucket
    clips: int
    microbatches: int
    left_out: int  # clips that do not fill a microbatch


def uses(plan: EpochPlan, buckets: Buckets) -> list[BucketUse]:
    """Every bucket that has clips in this epoch, in the order of the configuration."""
    counts = np.bincount(plan.cells, minlength=len(buckets.cells))
    clips = np.bincount(plan.cells, plan.sizes, minlength=len(buckets.cells)).astype(np.int64)
    return [
        BucketUse(buckets.cells[cell], len(order), int(counts[cell]), len(order) - int(clips[cell]))
        for cell, order in sorted(plan.cell_orders.items())
    ]
