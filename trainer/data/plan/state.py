"""What a checkpoint keeps of the data, and how a run continues from it: exactly, or not at all.

A run whose data differ is refused with the first difference, unless --data-state says how to
continue: `reset` begins the next epoch with the new data, `remap` continues this epoch with the
clips not seen yet (compared by content), `force` keeps the position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.plan.balance import Balance
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import SCHEMA, Cursor, DataPlan
from trainer.errors import TrainerError

Ids = NDArray[np.uint64]


class DataStateError(TrainerError):
    """The data of a checkpoint and of this run differ; the message names the first difference."""

    exit_code = 2


@dataclass(frozen=True)
class Restored:
    """Where to continue; every rank calls `plan.leave_out(cursor.epoch, left_out)`."""

    cursor: Cursor
    left_out: Ids
    note: str = ""  # how data that differ were handled, for people
    skipped: tuple[tuple[int, int, int], ...] = ()  # for `plan.skipped`


def take(plan: DataPlan, cursor: Cursor, world: int) -> dict[str, Any]:
    """What a checkpoint keeps; `world` is for people, a run of another world may continue."""
    left_out = _left_out(plan, cursor.epoch)
    return {
        **identity(plan),
        "plan_hash": plan.epoch(cursor.epoch).hash,
        "epoch": cursor.epoch,
        "microbatches_consumed": cursor.consumed,
        "left_out": {"count": len(left_out), "hash": _hash(left_out)} if len(left_out) else None,
        "skipped": [list(place) for place in plan.skipped],
        "world": world,
    }


def seen(plan: DataPlan, cursor: Cursor) -> Ids:
    """Content ids of this epoch's clips so far [N], those of the state's `left_out` first."""
    rows = plan.epoch(cursor.epoch).rows(cursor.consumed)
    return np.concatenate([_left_out(plan, cursor.epoch), plan.content_ids[rows]])


def identity(plan: DataPlan) -> dict[str, Any]:
    stride, marks = plan.manifest.own_marks
    return {
        "schema": SCHEMA,
        "rows": len(plan.manifest),
        "fingerprint": plan.manifest.fingerprint,
        "marks": {"stride": stride, "hashes": marks},
        "buckets": plan.buckets.canonical,
        "buckets_hash": plan.buckets.hash,
        "seed": plan.seed,
        "frame_interval": plan.frame_interval,
        "held_out": plan.held_out,
        "drop_last": True,
        "tail": "drop",
        "balance": plan.balance.state() if plan.balance is not None else None,
    }


def restore(
    plan: DataPlan, state: Mapping[str, Any], before: Ids, on_mismatch: str = "fail"
) -> Restored:
    """The position that a checkpoint's state and its `seen` ids stand for. Raises DataStateError
    when the state is damaged, and on "fail" naming the first difference."""
    _check_types(state)
    restored = _restore(plan, state, before, on_mismatch)
    return replace(restored, skipped=tuple(map(tuple, state.get("skipped", ()))))


def _restore(plan: DataPlan, state: Mapping[str, Any], before: Ids, on_mismatch: str) -> Restored:
    epoch, consumed = int(state["epoch"]), int(state["microbatches_consumed"])
    stored = state.get("left_out")
    left_out = before[: stored["count"]] if stored else before[:0]
    if stored and _hash(left_out) != stored["hash"]:
        raise _damaged("the clips that it leaves out")
    plan.leave_out(epoch, left_out)  # what follows compares the epoch's order
    different = difference(plan, state)
    if different is None or on_mismatch == "force":
        return Restored(Cursor(epoch, consumed), left_out, different or "")
    if on_mismatch == "reset":
        plan.leave_out(epoch, before[:0])
        note = f"{different}; epoch {epoch + 1} begins with the new data"
        return Restored(Cursor(epoch + 1), before[:0], note)
    if on_mismatch == "remap":
        plan.leave_out(epoch, before)
        present = int(np.isin(plan.content_ids, before).sum())
        note = f"{different}; epoch {epoch} continues without the {present:,} clips already seen"
        if gone := len(before) - present:
            note += f" ({gone:,} more of them are no longer in the data)"
        return Restored(Cursor(epoch), before, note)
    raise DataStateError(
        f"the data of the checkpoint and of this run differ: {different}",
        hint="--data-state remap continues this epoch with the clips not seen yet; reset starts a "
        "new epoch with the new data; both keep the optimizer. force keeps the position, so clips "
        "may repeat or be missed",
    )


def difference(plan: DataPlan, state: Mapping[str, Any]) -> str | None:
    """The first difference between a checkpoint's data and this run's, as a sentence."""
    mine = identity(plan)
    if state["schema"] != SCHEMA:
        return f"the order was made by version {state['schema']} of the plan, this is {SCHEMA}"
    if state["fingerprint"] != mine["fingerprint"]:
        return _row_difference(plan, state)
    if state["buckets"] != mine["buckets"]:
        return _bucket_difference(state["buckets"], mine["buckets"])
    for name in ("seed", "frame_interval"):
        if state[name] != mine[name]:
            return f"{name} was {state[name]}, is {mine[name]}"
    if (was := state.get("held_out", 0.0)) != mine["held_out"]:
        return f"validation.share was {was}, is {mine['held_out']}"
    epoch, consumed = state["epoch"], state["microbatches_consumed"]
    if different := _balance_difference(plan, state.get("balance"), epoch, consumed):
        return different
    if consumed and state["plan_hash"] != plan.epoch(epoch).hash:
        return f"the order of epoch {epoch} differs although its inputs are equal"
    return None


def balance_before(
    state: Mapping[str, Any], buckets: Buckets, window: int, ranks: int, each: int
) -> Balance | None:
    """The balance that a checkpoint's data go on with; None when there is none for this run."""
    _check_types(state)
    if not state.get("balance") or state["buckets"] != buckets.canonical:
        return None
    before = Balance.of(state["balance"])
    if before.window != window or len(before.costs) != len(buckets.cells):
        return None
    return before.continued(state["epoch"], state["microbatches_consumed"], ranks, each)


def _left_out(plan: DataPlan, epoch: int) -> Ids:
    of_epoch, ids = plan.left_out or (epoch, np.empty(0, np.uint64))
    return ids if of_epoch == epoch else np.empty(0, np.uint64)


def _hash(ids: Ids) -> str:
    return hashlib.sha256(ids.astype("<u8").tobytes()).hexdigest()


def _row_difference(plan: DataPlan, state: Mapping[str, Any]) -> str:
    before, now = state["rows"], len(plan.manifest)
    stride, old = int(state["marks"]["stride"]), list(state["marks"]["hashes"])
    new = plan.manifest.marks(stride)
    pairs = enumerate(zip(old, new, strict=False))
    same = next((n for n, (was, now_) in pairs if was != now_), min(len(old), len(new)))
    first = min(same * stride, before, now)
    count = f"{before:,} rows then, {now:,} now" if before != now else f"{now:,} rows each"
    if first >= now:
        return f"{count}; the first {now:,} are equal"
    last = min(first + stride, now)
    where = f"row {last:,}" if last == first + 1 else f"rows {first + 1:,} to {last:,}"
    return f"{count}; the first difference is in {where} ({plan.manifest.paths[first]} …)"


def _bucket_difference(before: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    if before.get("semantics") != mine["semantics"]:
        return f"bucket semantics was {before.get('semantics')}, is {mine['semantics']}"
    old, new = before.get("slots", {}), mine["slots"]
    for resolution in dict.fromkeys([*old, *new]):
        was, has = old.get(resolution, {}), new.get(resolution, {})
        for frames in dict.fromkeys([*was, *has]):
            if was.get(frames) != has.get(frames):
                then, now = _entry(was.get(frames)), _entry(has.get(frames))
                return f"bucket_config[{resolution!r}][{frames}] was {then}, is {now}"
    return "the order of bucket_config"


def _entry(line: Any) -> str:
    if line is None:
        return "absent"
    keep, take, batch_size = line
    return f"({keep if take is None else (keep, take)}, {batch_size})"


def _balance_difference(plan: DataPlan, before: Any, epoch: int, consumed: int) -> str | None:
    was, now = Balance.of(before) if before else None, plan.balance
    old, new = was.window if was else 0, now.window if now else 0
    if old != new:
        return f"dataset.balance_window was {old}, is {new}"
    if was is None or now is None:
        return None
    if was.costs != now.costs:
        return "the costs that group microbatches into steps differ"
    then, here = ("{} ranks with {} microbatches each".format(*b.step(epoch)) for b in (was, now))
    if consumed and then != here:
        return f"steps of epoch {epoch} were made of {then}, now of {here}"
    return None


_TYPES: dict[str, type] = {
    **dict.fromkeys(("schema", "rows", "seed", "frame_interval"), int),
    **dict.fromkeys(("epoch", "microbatches_consumed"), int),
    **dict.fromkeys(("fingerprint", "plan_hash"), str),
    **dict.fromkeys(("marks", "buckets"), dict),
}


def _damaged(what: str) -> DataStateError:
    return DataStateError(f"the sampler's state is damaged: {what}"[:200])


def _require(found: Any, types: Mapping[str, type]) -> None:
    """Raise DataStateError for what is no object with entries of these types."""
    if not isinstance(found, Mapping):
        raise _damaged(f"{found!r} is not an object")
    for name, expected in types.items():
        if type(found.get(name)) is not expected:
            raise _damaged(f"{name} is {found.get(name)!r}")


def _is_place(found: Any) -> bool:
    return isinstance(found, list) and [type(number) for number in found] == [int, int, int]


def _check_types(state: Mapping[str, Any]) -> None:
    """Refuse a state file that was truncated or edited; the message names a wrong entry."""
    _require(state, _TYPES)
    _require(state["marks"], {"stride": int, "hashes": list})
    if state.get("left_out") is not None:
        _require(state["left_out"], {"count": int, "hash": str})
    skipped = state.get("skipped", [])
    if not isinstance(skipped, list) or not all(map(_is_place, skipped)):
        raise _damaged("skipped")
    if min(state["epoch"], state["microbatches_consumed"], state["rows"]) < 0:
        raise _damaged("a count is below 0")
    if state["marks"]["stride"] < 1:
        raise _damaged("marks")
    if state.get("balance") is not None:
        try:
            Balance.of(state["balance"])
        except ValueError as error:
            raise _damaged(str(error)) from None
    _require(state["buckets"], {"slots": dict})
    _require(state["buckets"]["slots"], dict.fromkeys(state["buckets"]["slots"], dict))
