"""Verdicts from counts where stacks name nobody: each answer, and each reason for none."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterctl.stacks.report import nccl_json
from tests.clusterctl.stacks.counting import (
    COMPUTES,
    IDLE,
    SPINS,
    answering,
    named,
    places,
    verdict,
    with_gpus,
)
from tests.clusterctl.stacks.made import Made, cluster, snapshot
from tests.clusterctl.stacks.ras_answers import Comm, as_json, as_text


def test_part_that_is_frozen_is_named_as_a_communicator() -> None:
    comms = [
        Comm(0x10, [{"AllReduce": 7 - (rank in (2, 3))} for rank in range(8)], places(8, 2)),
        Comm(0x11, [{"AllGather": 5}] * 2, places(8, 2)[2:4]),
    ]
    found = verdict(answering(cluster(4, 2, 0), *[as_json(comms)] * 2))
    assert (found.kind, found.suspects) == ("all-same", [])
    assert "frozen in communicator 0x11 (2 ranks): ranks 2-3 (node-002) have launched the same" in found.sentence  # fmt: skip


def test_idle_job_that_waits_for_nobody_is_unknown() -> None:
    comm = Comm(0x1, [{"AllReduce": 3}] * 4, places(4, 2))
    pause = [("get_order", "/home/me/job/shell.py", "shell.py", 3)]
    made = cluster(2, 2, 0, dict.fromkeys(range(4), pause))
    assert verdict(made).kind == "hang"
    found = verdict(with_gpus(answering(made, *[as_json([comm])] * 2), [IDLE] * 4))
    assert (found.kind, found.exit_code) == ("unknown", 3)


def equal(ranks: int = 8, per_node: int = 2) -> list[Made]:
    comm = Comm(0x1, [{"AllReduce": 7}] * ranks, places(ranks, per_node))
    return answering(cluster(ranks // per_node, per_node, 0), *[as_json([comm])] * 2)


def test_equal_counts_that_stand_are_frozen() -> None:
    found = verdict(with_gpus(equal(), [SPINS] * 8))
    assert (found.kind, found.confidence, found.suspects) == ("all-same", "medium", [])
    assert "frozen, with equal counts of NCCL on all of them" in found.sentence
    assert "GPUs of ranks 0-7 spin (100 % at 118 of 700 W)" in found.evidence


def test_kernel_that_spins_alone_is_named() -> None:
    found = verdict(with_gpus(equal(), [IDLE] * 5 + [SPINS] + [IDLE] * 2))
    assert (found.kind, named(found)) == ("hang", {5})
    assert "a kernel spins on node-003 (rank 5: 100 % at 118 of 700 W" in found.sentence


def test_gpu_that_computes_is_slow_rather_than_hung() -> None:
    found = verdict(with_gpus(equal(), [SPINS] * 7 + [COMPUTES]))
    assert (found.kind, found.suspects, found.exit_code) == ("busy", [], 3)
    assert "the GPU of rank 7 computes (98 % at 640 of 700 W)" in found.sentence
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 7)} for rank in range(8)], places(8, 2))
    made = answering(cluster(4, 2, 0), *[as_json([comm])] * 2)
    found = verdict(with_gpus(made, [SPINS] * 7 + [COMPUTES]))
    assert (found.kind, named(found)) == ("busy", {7})
    assert "has not launched AllReduce number 7 of communicator 0x1 (8 ranks) yet" in found.sentence


def test_idle_gpus_in_a_collective_say_that_nccl_is_not_at_work() -> None:
    found = verdict(with_gpus(equal(), [IDLE] * 8))
    assert (found.kind, found.suspects, found.confidence) == ("all-same", [], "low")
    assert "unknown which rank is missing: no GPU runs a kernel" in found.sentence


def test_rank_without_an_answer_prevents_an_accusation() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2), frozenset({5}))  # fmt: skip
    for text in (as_json([comm]), as_text([comm], 8)):
        found = verdict(answering(cluster(4, 2, 0), text, text))
        assert (found.kind, found.suspects) == ("all-same", [])
        assert "no counts of rank 5 (node-003: does not answer RAS)" in found.sentence


def test_answer_of_some_nodes_is_enough() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2))
    made = answering(cluster(4, 2, 0), *[as_json([comm])] * 2, silent=(0, 3))
    found = verdict(made)
    assert named(found) == {3}
    assert "NCCL RAS answered on 2 of 4 nodes, not on node-[001,004]" in found.evidence


def test_one_sample_cannot_tell() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2))
    found = verdict(answering(cluster(4, 2, 0), as_json([comm])))
    assert found.suspects == []
    assert "answered at one sample only" in found.sentence


def test_answer_about_another_job_is_not_used() -> None:
    strangers = [("10.9.9.9", 77 + rank) for rank in range(8)]
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], strangers)
    for text in (as_json([comm]), as_text([comm], 8)):
        found = verdict(answering(cluster(4, 2, 0), text, text))
        assert found.suspects == []
        assert "answers for processes that are not this job's" in found.sentence


def test_ranks_in_a_container_are_found_by_their_number_there() -> None:
    inside = [(f"10.0.0.{rank // 2 + 1}", 40 + rank % 2) for rank in range(8)]
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], inside)
    made = answering(cluster(4, 2, 0), *[as_json([comm])] * 2)
    for node in made:
        node.more["counters"]["inner"] = {"1000": 40, "1001": 41}
    assert named(verdict(made)) == {3}


def test_without_ras_the_reason_is_said() -> None:
    made = answering(cluster(4, 2, 0), silent=range(4))
    found = verdict(made)
    assert (found.kind, found.suspects) == ("all-same", [])
    assert "missing: NCCL RAS answers on no node (127.0.0.1 port 28028: nothing listens there on 4 of 4)" in found.sentence  # fmt: skip


def test_collective_of_another_kind_is_a_desync() -> None:
    counts = [{"AllReduce": 7, "Broadcast": 2}] * 8
    counts[6] = {"AllReduce": 6, "Broadcast": 3}
    comm = Comm(0x1, counts, places(8, 2))
    for text in (as_json([comm]), as_text([comm], 8)):
        found = verdict(answering(cluster(4, 2, 0), text, text))
        assert (found.kind, named(found)) == ("desync", {6})
        assert "Broadcast number 3 instead of AllReduce number 7" in found.sentence


def test_two_communicators_in_another_order_are_a_desync() -> None:
    pair = places(2, 1)
    comms = [Comm(1, [{"AllReduce": 4}, {"AllReduce": 3}], pair), Comm(2, [{"AllReduce": 3}, {"AllReduce": 4}], pair)]  # fmt: skip
    found = verdict(answering(cluster(2, 1, 0), *[as_json(comms)] * 2))
    assert (found.kind, found.suspects) == ("desync", [])
    assert "wait for each other in communicator 0x1 (2 ranks) and communicator 0x2 (2 ranks)" in found.sentence  # fmt: skip


def test_half_against_half_accuses_nobody() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank < 4)} for rank in range(8)], places(8, 2))
    found = verdict(answering(cluster(4, 2, 0), *[as_json([comm])] * 2))
    assert (found.kind, found.suspects) == ("desync", [])
    found = verdict(answering(cluster(4, 2, 0), *[as_text([comm], 8)] * 2))
    assert (found.kind, found.suspects) == ("all-same", [])
    assert "does not show whose counts of communicator 0x1 (8 ranks) differ" in found.sentence


def test_text_at_the_last_sample_only_shows_no_change() -> None:
    """What stands between two looks can only be said of two looks."""
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2))
    made = answering(cluster(4, 2, 0), *[as_text([comm], 8)] * 2)
    for node in made:
        node.more["counters"]["ras"][0] = {"error": "it closed the connection", "seconds": 0.1}
    found = verdict(made)
    assert (found.kind, found.suspects) == ("all-same", [])


def test_part_that_computes_is_not_frozen() -> None:
    comms = [
        Comm(0x10, [{"AllReduce": 7 - (rank in (2, 3))} for rank in range(8)], places(8, 2)),
        Comm(0x11, [{"AllGather": 5}] * 2, places(8, 2)[2:4]),
    ]
    made = answering(cluster(4, 2, 0), *[as_json(comms)] * 2)
    found = verdict(with_gpus(made, [SPINS] * 3 + [COMPUTES] + [SPINS] * 4))
    assert (found.kind, found.exit_code) == ("busy", 3)


def test_stood_for_long_is_high_confidence() -> None:
    beats = ({"step": 8, "phase": "backward", "age_s": 60.0}, {"step": 8, "phase": "backward", "age_s": 62.0})  # fmt: skip
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2))
    for more, uses, confidence in (
        ({}, None, "low"), ({}, [SPINS] * 8, "medium"), ({"beats": beats}, None, "high"),
    ):  # fmt: skip
        made = answering(cluster(4, 2, 0, **more), *[as_json([comm])] * 2)
        found = verdict(with_gpus(made, uses) if uses else made)
        assert (named(found), found.confidence) == ({3}, confidence)
        is_brief = "seen for only 2 s: use --interval 30 to be sure" in found.evidence
        assert is_brief == (confidence != "high")


def record(number: int, *, done: bool = True) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
        "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "completed" if done else "scheduled", "retired": done,
        "frames": [{"name": "step", "filename": "/home/me/job/train.py", "line": 17}],
    }  # fmt: skip


def recorded(made: list[Made], newest: dict[int, int], age_s: float = 30.0) -> list[Made]:
    """Flight records of the ranks up to these numbers."""
    for node in made:
        node.more["flight"] = {
            str(row["rank"]): {"path": "/fr/x", "age_s": age_s, "entries": [record(number) for number in range(1, newest[row["rank"]] + 1)]}
            for row in node.rows if row["rank"] in newest
        }  # fmt: skip
    return made


def test_flight_records_name_the_rank_where_ras_does_not_listen() -> None:
    newest = {rank: 9 - (rank == 5) for rank in range(8)}
    found = verdict(recorded(answering(cluster(4, 2, 0), silent=range(4)), newest))
    assert (found.kind, named(found)) == ("hang", {5})
    assert "rank 5 (node-003) never joined all_reduce number 9 of group 0 default_pg at step train.py:17" in found.sentence  # fmt: skip


def test_flight_record_of_an_earlier_attempt_is_not_used() -> None:
    newest = {rank: 9 - (rank == 5) for rank in range(8)}
    made = recorded(answering(cluster(4, 2, 0), silent=range(4)), newest, age_s=500.0)
    assert verdict(made).suspects == []


def test_rank_without_a_record_prevents_an_accusation() -> None:
    newest = {rank: 9 - (rank == 5) for rank in range(7)}
    found = verdict(recorded(answering(cluster(4, 2, 0), silent=range(4)), newest))
    assert found.suspects == []
    assert "no flight record of rank 7, which may be behind, too" in found.sentence


def test_sources_that_disagree_accuse_nobody() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(8)], places(8, 2))
    made = answering(cluster(4, 2, 0), *[as_json([comm])] * 2)
    found = verdict(recorded(made, {rank: 9 - (rank == 5) for rank in range(8)}))
    assert found.suspects == []
    assert "NCCL RAS says that rank 3 is behind, and flight recorder says rank 5" in found.sentence


def test_counters_of_the_watchdog_name_the_rank() -> None:
    """The line as torch 2.4 prints it, from tests/captures/nccl."""
    made = answering(cluster(4, 2, 0), silent=range(4))
    for node in made:
        node.more["logs"] = {
            str(row["pid"]): [
                (f"[rank{row['rank']}]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank {row['rank']}] Timeout at NCCL work: 15734, "
                f"last enqueued NCCL work: {15735 - (row['rank'] == 6)}, last completed NCCL work: 15733.")
            ]
            for row in node.rows
        }  # fmt: skip
    found = verdict(made)
    assert (found.kind, named(found)) == ("hang", {6})
    assert "rank 6 (node-004) never joined number 15735 of group 1; 7 others have and wait" in found.sentence  # fmt: skip


def test_report_has_the_counts() -> None:
    comm = Comm(0x1, [{"AllReduce": 7 - (rank == 3)} for rank in range(4)], places(4, 2))
    shot = snapshot(*with_gpus(answering(cluster(2, 2, 0), *[as_json([comm])] * 2), [SPINS] * 4))
    found = nccl_json(shot)
    assert (found["moved"], found["answered"]) == (False, ["node-001", "node-002"])
    (group,) = found["communicators"]
    assert [one["launched"]["AllReduce"] for one in group["ranks"]] == [7, 7, 7, 6]
    assert [(one["rank"], one["use"], one["power_w"]) for one in found["gpus"]] == [(rank, "spins", 118.0) for rank in range(4)]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("write", [as_json, lambda comms: as_text(comms, 4)])
def test_answer_with_thousands_of_communicators_is_judged_in_time(write: Any) -> None:
    pair = places(4, 2)
    comms = [Comm(number + 1, [{"AllReduce": 4 - rank % 2} for rank in range(3)], pair[:3]) for number in range(5000)]  # fmt: skip
    made = answering(cluster(2, 2, 0), *[write(comms)] * 2)
    begun = time.process_time()
    verdict(made)
    assert time.process_time() - begun < 10
