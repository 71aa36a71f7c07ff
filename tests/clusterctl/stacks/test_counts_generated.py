"""Verdicts from counts over many generated jobs: the first cause is named, or nobody is."""

from __future__ import annotations

import random

import pytest

from clusterctl.stacks.verdict import Verdict
from tests.clusterctl.stacks.collectives import Job, made_job
from tests.clusterctl.stacks.counting import IDLE, answering, named, places, verdict, with_gpus
from tests.clusterctl.stacks.made import WAIT_DATA, cluster
from tests.clusterctl.stacks.ras_answers import Comm, as_json, as_text


def of_job(job: Job, per_node: int, *, text: bool = False) -> Verdict:
    """Both samples show the same."""
    comms = job.comms(places(job.ranks, per_node))
    answer = as_text(comms, job.ranks) if text else as_json(comms)
    return verdict(answering(cluster(job.ranks // per_node, per_node, 0), answer, answer))


def size(dice: random.Random) -> tuple[int, int]:
    """Ranks, and ranks of a node."""
    per_node = dice.choice([1, 2, 4])
    return per_node * dice.randint(2, 6 if per_node > 1 else 8), per_node


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
def test_stopped_rank_is_named_or_nobody_is(text: bool) -> None:
    right, wrong = 0, []
    for seed in range(80):
        dice = random.Random(seed)
        ranks, per_node = size(dice)
        job = made_job(dice, ranks)
        guilty = dice.randrange(ranks)
        job.stopped[guilty] = dice.randrange(1, len(job.programs[guilty]) - 1)
        job.run()
        found = of_job(job, per_node, text=text)
        assert found.exit_code == 1, found.headline
        right += named(found) == {guilty}
        if named(found) - {guilty}:
            wrong.append((seed, guilty, found.sentence))
    print(f"named {right} of 80")
    assert wrong == []
    assert right >= (45 if text else 60)


@pytest.mark.long
def test_rank_that_skips_or_repeats_a_call_is_named_or_nobody_is() -> None:
    right, wrong = 0, []
    for seed in range(80):
        dice = random.Random(1000 + seed)
        ranks, per_node = size(dice)
        job = made_job(dice, ranks)
        guilty = dice.randrange(ranks)
        program = job.programs[guilty]
        at = dice.randrange(1, len(program) - 1)
        if dice.random() < 0.5:
            del program[at]
        else:
            program.insert(at, (0, dice.choice(["AllReduce", "Broadcast"])))
        job.run()
        if all(job.launched[r] == len(job.programs[r]) == job._finished(r) for r in range(ranks)):
            continue
        found = of_job(job, per_node)
        right += named(found) == {guilty}
        if named(found) - {guilty}:
            wrong.append((seed, guilty, found.sentence))
    print(f"named {right}")
    assert wrong == []


@pytest.mark.long
def test_broken_link_accuses_nobody() -> None:
    for seed in range(60):
        dice = random.Random(2000 + seed)
        ranks, per_node = size(dice)
        job = made_job(dice, ranks)
        group = dice.randrange(len(job.groups))
        calls = sum(one == group for one, _ in job.programs[job.groups[group][0]])
        if not calls:
            continue
        job.broken = (group, dice.randrange(calls))
        job.run()
        found = of_job(job, per_node)
        assert found.exit_code == 1, found.headline
        assert named(found) == set(), (seed, found.sentence)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("text", [False, True])
def test_counts_that_move_are_no_hang_whatever_their_difference(seed: int, text: bool) -> None:
    """A rank that is always one or more behind; and a different one at each look."""
    dice = random.Random(seed)
    ranks, per_node = size(dice)
    lags = [dice.randint(0, 3) for _ in range(ranks)]
    lags[0], lags[-1] = 0, 2
    answers = []
    for base in (500, 500 + dice.randint(1, 40)):
        counts = [{"AllReduce": base - lag, "AllGather": 9} for lag in lags]
        comm = Comm(0x1, counts, places(ranks, per_node))
        answers.append(as_text([comm], ranks) if text else as_json([comm]))
    found = verdict(answering(cluster(ranks // per_node, per_node, 0), *answers))
    assert (found.kind, found.suspects, found.exit_code) == ("moving", [], 0)
    assert "no hang" in found.sentence


@pytest.mark.long
def test_healthy_job_that_is_caught_in_the_same_lines_twice_is_no_hang() -> None:
    for seed in range(20):
        dice = random.Random(3000 + seed)
        ranks, per_node = size(dice)
        job = made_job(dice, ranks)
        texts = []
        for calls in (3, 7):
            job.run(min(calls, min(map(len, job.programs))))
            texts.append(as_json(job.comms(places(ranks, per_node))))
        found = verdict(answering(cluster(ranks // per_node, per_node, 0), *texts))
        assert found.exit_code in (0, 3), (seed, found.headline)
        assert found.suspects == []


@pytest.mark.parametrize("seed", range(20))
def test_idle_job_keeps_the_verdict_of_its_stacks(seed: int) -> None:
    """Equal counts that stand, idle GPUs, and ranks that wait for data: NCCL has no part in it."""
    dice = random.Random(seed)
    ranks, per_node = size(dice)
    comm = Comm(0x1, [{"AllReduce": dice.randint(0, 9)}] * ranks, places(ranks, per_node))
    made = cluster(ranks // per_node, per_node, 0, dict.fromkeys(range(ranks), WAIT_DATA))
    plain = verdict(made)
    with_all = verdict(with_gpus(answering(made, *[as_json([comm])] * 2), [IDLE] * ranks))
    assert with_all.to_json() == plain.to_json()
    assert with_all.kind == "data"
