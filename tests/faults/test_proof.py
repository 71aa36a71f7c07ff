"""What a campaign counts as lost, repeated or different."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.faults import proof
from tests.faults.campaign import Outcome
from tests.faults.cases import disks, head, nodes, ranks
from tests.faults.fault import FAULTS
from tests.faults.proof import Compared, History
from tests.faults.random_runs import COSTS, SETTING, drawn
from tests.faults.rig import CLIPS
from tests.faults.table import table

SIZE, WORLD = 4, 4


def epochs(count: int, world: int = WORLD) -> History:
    """A run that trains in each epoch once on every clip that fills a step."""
    samples = {}
    steps = CLIPS // SIZE // world
    for epoch in range(count):
        rows = list(range(CLIPS))
        random.Random(epoch).shuffle(rows)
        for index in range(steps * world):
            step = epoch * steps + index // world + 1
            mine = tuple(rows[index * SIZE : (index + 1) * SIZE])
            samples[step, index % world] = (epoch, index, mine, f"{epoch}-{mine}")
    losses = {step: 1.0 / step for step, _ in samples}
    return History(samples, losses, "epoch1-global_step12", {"model": "a", "ema": "b"})


def test_equal_runs_have_no_difference() -> None:
    assert proof.compare(epochs(2), epochs(2)) == Compared()
    assert proof.count(epochs(3), WORLD) == Compared()


def test_step_that_was_done_twice_or_not_at_all_is_counted() -> None:
    whole = epochs(2)
    without = dict(whole.samples)
    del without[3, 1]
    found = proof.compare(replace(whole, samples=without), whole)
    assert (found.missed, found.repeated) == (SIZE, 0)
    last = max(step for step, _ in whole.samples)
    twice = {**whole.samples, (last + 1, 0): whole.samples[last, 0]}
    found = proof.compare(replace(whole, samples=twice), whole)
    assert (found.missed, found.repeated) == (0, 2 * SIZE)


def test_losses_may_be_missing_that_the_run_says_it_could_not_write() -> None:
    whole = epochs(2)
    without = {step: loss for step, loss in whole.losses.items() if step not in (5, 6)}
    for lost, wrong in ((2, ()), (1, ("2 losses differ, first that of step 5",))):
        assert proof.compare(replace(whole, losses=without, lost=lost), whole).wrong == wrong
    other = {**without, 7: 0.5}
    found = proof.compare(replace(whole, losses=other, lost=9), whole)
    assert found.wrong == ("1 losses differ, first that of step 7",)


def test_samples_losses_and_weights_that_differ_are_named() -> None:
    whole = epochs(2)
    other = {**whole.samples, (3, 1): (*whole.samples[3, 1][:3], "another crop")}
    for changed, text in (
        (replace(whole, samples=other), "1 steps of ranks had other samples, first 3 of rank 1"),
        (replace(whole, losses={**whole.losses, 7: 0.5}), "1 losses differ, first that of step 7"),
        (replace(whole, digests={"model": "a", "ema": "c"}), "the last checkpoint differs in ema"),
        (replace(whole, checkpoint=""), "the last checkpoint is none"),
    ):
        assert proof.compare(changed, whole).wrong == (text,)


def test_clips_of_an_epoch_are_counted_whatever_the_number_of_ranks() -> None:
    whole = epochs(2)
    lost = {place: one for place, one in whole.samples.items() if place != (2, 3)}
    assert proof.count(replace(whole, samples=lost), WORLD).missed == SIZE
    assert proof.count(replace(whole, samples=lost), WORLD, left_out=1).missed == 0
    twice = {**whole.samples, (2, 4): whole.samples[2, 3]}
    assert proof.count(replace(whole, samples=twice), WORLD).repeated == SIZE


def test_clips_that_fill_no_step_of_the_ranks_of_an_epoch_are_not_missed() -> None:
    whole = epochs(2, world=14)
    assert len(whole.samples) == 2 * 42
    assert proof.count(whole, 14).missed == 0
    lost = {place: one for place, one in whole.samples.items() if place != (2, 3)}
    assert proof.count(replace(whole, samples=lost), 14).missed == SIZE


def test_seed_gives_the_same_faults_and_never_costs_more_nodes_than_there_are_spares() -> None:
    for seed in range(200):
        plan = drawn(seed)
        assert plan == drawn(seed)
        assert len(plan) == 3
        assert sum(COSTS.get(one.harm, 0) for one in plan) <= SETTING.spares
    assert len({str(drawn(seed)) for seed in range(200)}) > 150


def test_table_has_median_and_worst_of_each_fault() -> None:
    rounds = [
        Outcome("F1", seed, (), "signal-9", 2, detected_s=0.1 * seed, recovered_s=seed)
        for seed in (1, 2, 9)
    ]
    lines = list(table([*rounds, Outcome("F9", 1, ("a restart",), orphans=2)], FAULTS))
    assert lines[1].split() == [
        "F1",
        "rank",
        "killed",
        "3/3",
        "signal-9",
        "0.2",
        "/",
        "0.9",
        "2.0",
        "/",
        "9.0",
        "0",
        "0",
        "0",
    ]
    assert lines[-1].split()[:2] == ["all", "3/4"]


def test_every_case_is_entered() -> None:
    assert all(module.__doc__ for module in (disks, head, nodes, ranks))
    asked = {1, 2, 3, 4, 5, 6, 7, 8, 9, *range(12, 17), *range(18, 25), *range(26, 35)}
    have = {int(name[1:].partition("-")[0]) for name in FAULTS}
    assert asked <= have
