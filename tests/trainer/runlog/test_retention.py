"""When a run saves, what it keeps, and what all of it takes on the disk."""

from __future__ import annotations

import pytest

from trainer.runlog import retention
from trainer.runlog.retention import Rules, disk_need, largest_keep, outdated, save_steps


@pytest.mark.parametrize(
    ("keep", "every", "left"),
    [
        (-1, 0, [10, 20, 30, 40, 50]),
        (2, 0, [40, 50]),
        (1, 20, [20, 40, 50]),
        (2, 50, [40, 50]),
        (9, 0, [10, 20, 30, 40, 50]),
    ],
)
def test_the_newest_and_every_nth_step_are_kept(keep: int, every: int, left: list[int]) -> None:
    steps = [10, 20, 30, 40, 50]
    gone = {steps[index] for index in outdated(steps, keep, every)}
    assert [step for step in steps if step not in gone] == left


def test_after_going_back_the_newest_is_what_was_made_last() -> None:
    assert outdated([10, 20, 30, 15], 1) == [0, 1, 2]


@pytest.mark.parametrize(
    ("first", "last", "rules", "epoch", "steps"),
    [
        (0, 10, Rules(4), None, [4, 8, 10]),
        (0, 8, Rules(4), None, [4, 8]),
        (5, 12, Rules(4), None, [8, 12]),
        (0, 10, Rules(), None, [10]),
        (0, 10, Rules(4, ckpt_at_epoch_end=True), 3, [3, 4, 6, 8, 9, 10]),
        (0, 12, Rules(6, ckpt_at_epoch_end=True), 6, [6, 12]),
        (0, 10, Rules(4), 3, [4, 8, 10]),
        (10, 10, Rules(4), None, []),
    ],
)
def test_a_run_saves_at_multiples_at_epoch_ends_if_asked_and_at_its_end(
    first: int, last: int, rules: Rules, epoch: int | None, steps: list[int]
) -> None:
    assert list(save_steps(first, last, rules, epoch)) == steps


def need(rules: Rules, last: int, held: list[tuple[int, int]] | None = None) -> tuple[int, int]:
    """(more at the peak, at the end) with checkpoints of 100 bytes and 10 more while one is written."""
    found = disk_need(held or [], save_steps(0, last, rules), 100, 10, rules)
    return found.more_peak_bytes, found.end_bytes - sum(size for _, size in held or [])


def test_all_are_kept_by_default() -> None:
    assert need(Rules(10), 50) == (510, 500)


def test_an_old_one_goes_only_after_the_new_one_is_complete() -> None:
    assert need(Rules(10, keep_checkpoints=2), 50) == (310, 200)
    assert need(Rules(10, keep_checkpoints=1), 50) == (210, 100)


def test_those_of_every_nth_step_add_up() -> None:
    found = disk_need([], save_steps(0, 100, Rules(10)), 100, 10, Rules(10, 2, 50))
    assert (found.kept, found.end_bytes) == (3, 300)  # 50, 90 and 100


def test_what_is_held_already_counts_and_makes_room_when_it_goes() -> None:
    held = [(1, 100), (2, 100), (3, 100)]
    assert need(Rules(10, keep_checkpoints=2), 30, held) == (110, -100)
    assert need(Rules(10), 30, held) == (310, 300)


def test_a_run_that_saves_no_more_needs_nothing() -> None:
    found = disk_need([(10, 100)], [], 100, 10, Rules(10))
    assert (found.more_peak_bytes, found.peak_step, found.end_bytes) == (0, None, 100)


def test_the_largest_number_that_fits_is_found() -> None:
    steps, rules = list(save_steps(0, 1000, Rules(10))), Rules(10)
    assert largest_keep([], steps, 100, 10, rules, 1015) == 9
    assert largest_keep([], steps, 100, 10, rules, 150) is None
    most = disk_need([], steps, 100, 10, Rules(10, 9)).more_peak_bytes
    assert most <= 1015 < disk_need([], steps, 100, 10, Rules(10, 10)).more_peak_bytes


def test_an_absurd_number_of_saves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_SAVES", 5)
    with pytest.raises(ValueError, match="more than 5 times"):
        disk_need([], save_steps(0, 10**12, Rules(1)), 100, 10, Rules(1))
