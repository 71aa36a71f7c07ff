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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.buckets import Bucket, Buckets
from trainer.data.chance import bits
from trainer.data.manifest import Manifest
from trainer.errors import TrainerError

SCHEMA = 1  # goes up when the same inputs give another order
TAIL = "drop"
ON_MISMATCH = ("fail", "reset", "force", "remap")
_CLIPS, _ORDER = 1, 2  # words that keep the two shuffles of an epoch apart


class DataStateError(TrainerError):
    """The data of a checkpoint and of this run differ; the message names the first difference."""

    exit_code = 2


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
    ) -> None:
        """`drop_last=False` keeps a bucket's last, smaller microbatch."""
        self.manifest, self.buckets, self.seed = manifest, buckets, seed
        self.drop_last, self.frame_interval = drop_last, frame_interval
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

    def bucket(self, batch: Microbatch) -> Bucket:
        return self.buckets.cells[batch.cell]

    def _make(self, epoch: int) -> EpochPlan:
        cells = self.buckets.assign(self.manifest, self.seed, epoch, self.frame_interval)
        sizes = {cell: bucket.batch_size for cell, bucket in enumerate(self.buckets.cells)}
        if self.buckets.draw == "upstream":
            from trainer.data.upstream_order import order_epoch  # here: it needs torch

            orders, places = order_epoch(cells, sizes, self.seed, epoch, self.drop_last)
        else:
            orders, places = self._order_epoch(cells, sizes, epoch)
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

    # State: what a checkpoint keeps, and what it is compared with.

    def identity(self) -> dict[str, Any]:
        """What decides the order, as plain data."""
        stride, marks = self.manifest.marks()
        return {
            "schema": SCHEMA,
            "rows": len(self.manifest),
            "fingerprint": self.manifest.fingerprint,
            "marks": {"stride": stride, "hashes": marks},
            "buckets": self.buckets.canonical,
            "buckets_hash": self.buckets.hash,
            "seed": self.seed,
            "frame_interval": self.frame_interval,
            "drop_last": self.drop_last,
            "tail": TAIL,
        }

    def state(self, cursor: Cursor, world: int) -> dict[str, Any]:
        """What a checkpoint keeps; `world` is for people, any other may continue."""
        return {
            **self.identity(),
            "plan_hash": self.epoch(cursor.epoch).hash,
            "epoch": cursor.epoch,
            "microbatches_consumed": cursor.consumed,
            "world": world,
        }

    def difference(self, state: Mapping[str, Any]) -> str | None:
        """The first difference between a checkpoint's data and this run's, as a sentence."""
        mine = self.identity()
        if state["schema"] != SCHEMA:
            return f"the order was made by version {state['schema']} of the plan, this is {SCHEMA}"
        if state["fingerprint"] != mine["fingerprint"]:
            return self._row_difference(state)
        if state["buckets"] != mine["buckets"]:
            return _bucket_difference(state["buckets"], mine["buckets"])
        for name in ("seed", "frame_interval", "drop_last", "tail"):
            if state[name] != mine[name]:
                return f"{name} was {state[name]}, is {mine[name]}"
        epoch = state["epoch"]
        if state["plan_hash"] != self.epoch(epoch).hash:
            return f"the order of epoch {epoch} is another although its inputs are equal"
        return None

    def restore(self, state: Mapping[str, Any], on_mismatch: str = "fail") -> Cursor:
        """The position a checkpoint's state stands for.

        When the data differ: "fail" raises DataStateError naming the first difference, "reset"
        starts the next epoch with the new data, "force" goes on at the same number regardless.
        """
        if on_mismatch not in ON_MISMATCH:
            raise DataStateError(f"--data-state {on_mismatch!r}: {', '.join(ON_MISMATCH)}")
        if on_mismatch == "remap":
            raise DataStateError("--data-state remap is not built yet; use reset or force")
        _check_types(state)
        epoch, consumed = int(state["epoch"]), int(state["microbatches_consumed"])
        if on_mismatch == "force":
            return Cursor(epoch, consumed)
        difference = self.difference(state)
        if difference is None:
            return Cursor(epoch, consumed)
        if on_mismatch == "reset":
            return Cursor(epoch + 1, 0)
        raise DataStateError(
            f"the data of the checkpoint and of this run differ: {difference}",
            hint="--data-state reset starts a new epoch with the new data and keeps the optimizer; "
            "--data-state force goes on at the same position, so clips may repeat or be missed",
        )

    def _row_difference(self, state: Mapping[str, Any]) -> str:
        before, now = state["rows"], len(self.manifest)
        stride, old = int(state["marks"]["stride"]), list(state["marks"]["hashes"])
        new = self.manifest.marks(stride)[1]
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        first = min(same * stride, before, now)
        count = f"{before:,} rows then, {now:,} now" if before != now else f"{now:,} rows each"
        if first >= now:
            return f"{count}; the first {now:,} are equal"
        last = min(first + stride, now)
        where = f"row {last:,}" if last == first + 1 else f"rows {first + 1:,} to {last:,}"
        path = self.manifest.paths[first]
        return f"{count}; the first difference is in {where} ({path} …)"


def _hash_of(batches: tuple[Microbatch, ...]) -> str:
    digest = hashlib.sha256(str(len(batches)).encode())
    if batches:
        shape = [(batch.cell, len(batch.rows)) for batch in batches]
        digest.update(np.array(shape, "<i4").tobytes())
        digest.update(np.concatenate([batch.rows for batch in batches]).astype("<i8").tobytes())
    return digest.hexdigest()


def _bucket_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name in ("semantics", "draw"):
        if before.get(name) != now[name]:
            return f"bucket {name} was {before.get(name)}, is {now[name]}"
    old, new = before.get("slots", {}), now["slots"]
    for resolution in dict.fromkeys([*old, *new]):
        was, has = old.get(resolution, {}), new.get(resolution, {})
        for frames in dict.fromkeys([*was, *has]):
            if was.get(frames) != has.get(frames):
                return (
                    f"bucket_config[{resolution!r}][{frames}] was {_entry(was.get(frames))}, "
                    f"is {_entry(has.get(frames))}"
                )
    return "the order of bucket_config"


def _entry(line: Any) -> str:
    if line is None:
        return "absent"
    keep, take, batch_size = line
    chance = keep if take is None else (keep, take)
    return f"({chance}, {batch_size})"


_TYPES: dict[str, type] = {
    "schema": int,
    "rows": int,
    "fingerprint": str,
    "marks": dict,
    "buckets": dict,
    "seed": int,
    "frame_interval": int,
    "drop_last": bool,
    "tail": str,
    "plan_hash": str,
    "epoch": int,
    "microbatches_consumed": int,
}


def _check_types(state: Mapping[str, Any]) -> None:
    """A state file that was cut or edited is refused by the name of its first wrong entry."""
    if not isinstance(state, Mapping):
        raise DataStateError("the sampler's state is damaged: not an object")
    for name, kind in _TYPES.items():
        value = state.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise DataStateError(f"the sampler's state is damaged: {name} is {value!r}"[:200])
    marks = state["marks"]
    stride, hashes = marks.get("stride"), marks.get("hashes")
    if not isinstance(stride, int) or stride < 1 or not isinstance(hashes, list):
        raise DataStateError("the sampler's state is damaged: marks")
    if min(state["epoch"], state["microbatches_consumed"], state["rows"]) < 0:
        raise DataStateError("the sampler's state is damaged: a count is below 0")
    slots = state["buckets"].get("slots")
    if not isinstance(slots, dict) or not all(isinstance(line, dict) for line in slots.values()):
        raise DataStateError("the sampler's state is damaged: buckets")


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
