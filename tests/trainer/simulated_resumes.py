"""Resumes of the data plan at random places, from any number of ranks to any other, counted.

What a rank trains on is a function of its task (paths, window, size), so equal tasks are equal tensors.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import numpy as np

from tests.trainer.data.rows import random_manifest
from trainer.data.loader.task import Task, make_task
from trainer.data.plan import state as data_state
from trainer.data.plan.balance import Balance, classes
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan

CONFIG = {"360p": {51: (1.0, 3), 102: ((0.8, 0.5), 2)}, "240p": {51: (0.7, 4), 1: (0.9, 3)}}


@dataclass
class Counts:
    """Over all resumes: clips, except for `differing`, which counts microbatches."""

    resumes: int = 0
    microbatches: int = 0
    repeated: int = 0
    missed: int = 0
    differing: int = 0


def plan_of(rows: int, seed: int, balance: Balance | None) -> DataPlan:
    return DataPlan(random_manifest(rows, seed), Buckets.parse(CONFIG), seed, balance=balance)


def _rows(tasks: list[Task]) -> list[int]:
    return [clip.row for task in tasks for clip in task.clips]


def _tasks(plan: DataPlan, epoch: int, first: int, count: int) -> list[Task]:
    return [make_task(plan, epoch, index) for index in range(first, first + count)]


def resume(draw: random.Random, counts: Counts) -> None:
    """Train to a random place on some ranks, go on with others; every clip of that epoch and the next."""
    rows, seed = draw.randrange(100, 250), draw.randrange(1000)
    before, after = draw.randint(1, 16), draw.randint(1, 16)
    each, window = draw.choice([1, 1, 2]), draw.choice([0, 2, 8])
    epoch = draw.randrange(4)
    costs = classes(c.frames * c.height * c.width for c in Buckets.parse(CONFIG).cells)
    whole = plan_of(rows, seed, Balance(window, costs, {0: (before, each)}) if window else None)
    steps = whole.steps(Cursor(epoch), before * each)
    step = draw.choice([draw.randint(0, steps), steps])  # the epoch's last one as often as any
    cursor = Cursor(epoch, step * before * each)
    state = json.loads(json.dumps(data_state.take(whole, cursor, before)))
    seen = data_state.seen(whole, cursor)

    resumed = plan_of(rows, seed, None)  # another process
    if window:
        resumed.put_into_steps(
            data_state.balance_before(state, resumed.buckets, window, after, each)
        )
    restored = data_state.restore(resumed, state, seen)
    resumed.leave_out(restored.cursor.epoch, restored.left_out)
    assert restored.cursor == cursor
    done = _tasks(whole, epoch, 0, cursor.consumed)
    left = resumed.steps(cursor, after * each) * after * each
    rest = _tasks(resumed, epoch, cursor.consumed, left)
    trained = _rows(done) + _rows(rest)
    total = len(whole.epoch(epoch))
    alone = plan_of(rows, seed, Balance(window, costs, {0: (after, each)}) if window else None)
    # An epoch that had no step yet is put into steps of the new ranks.
    wanted = _tasks(whole if step else alone, epoch, 0, cursor.consumed + left)
    counts.resumes += 1
    counts.repeated += len(trained) - len(set(trained))
    counts.missed += len(set(_rows(wanted)) - set(trained))
    counts.differing += sum(
        one != two for one, two in zip(rest, wanted[cursor.consumed :], strict=True)
    )
    # Only what does not fill a step of the ranks that ended the epoch is left out of it.
    counts.missed += max(0, total - cursor.consumed - left - (after * each - 1))
    # The next epoch is that of a run that never had other ranks.
    count = resumed.steps(Cursor(epoch + 1), after * each) * after * each
    following = _tasks(resumed, epoch + 1, 0, count)
    counts.repeated += len(_rows(following)) - len(set(_rows(following)))
    counts.differing += sum(
        one != two for one, two in zip(following, _tasks(alone, epoch + 1, 0, count), strict=True)
    )
    counts.microbatches += len(rest) + len(following)
    assert np.array_equal(alone.epoch(epoch + 1).cells, resumed.epoch(epoch + 1).cells)


def campaign(count: int, seed: int) -> Counts:
    draw, counts = random.Random(seed), Counts()
    for _ in range(count):
        resume(draw, counts)
    return counts
