"""The verdict's rules on made-up snapshots: who is named, how sure, and who is not."""

from __future__ import annotations

import time

import pytest

from clusterctl.stacks.clues import clues
from clusterctl.stacks.frames import Frame, Stack
from clusterctl.stacks.judge import judge
from clusterctl.stacks.report import lines
from clusterctl.stacks.snapshot import judge_progress, read_snapshot
from clusterctl.stacks.wait_sites import Site, Sites
from tests.clusterctl.stacks.made import (
    ALL_REDUCE,
    BARRIER,
    FORWARD,
    IDLE,
    ITEM,
    LIB,
    READ,
    WAIT_DATA,
    Made,
    cluster,
    silent,
    snapshot,
)


def beat(step: int, phase: str, age_s: float) -> dict[str, object]:
    return {"step": step, "phase": phase, "age_s": age_s}


def with_blocked_loader(nodes: int = 24, ranks: int = 8, loaders: int = 16) -> list[Made]:
    made = cluster(nodes, ranks, loaders, {64 % (nodes * ranks): WAIT_DATA})
    home = made[(64 % (nodes * ranks)) // ranks]
    rank = 64 % (nodes * ranks)
    trainer = next(
        row["pid"] for row in home.rows if row["role"] == "trainer" and row["rank"] == rank
    )
    home.rows = [r for r in home.rows if not (r["rank"] == rank and r["index"] == 7)]
    home.add("loader", rank, READ, index=7, ppid=trainer)
    return made


@pytest.mark.long
def test_blocked_loader_among_192_ranks() -> None:
    verdict = judge(snapshot(*with_blocked_loader()))
    # Seen for 2 s, and there is no heartbeat: it may be slow.
    assert (verdict.kind, verdict.confidence) == ("hang", "medium")
    assert [(s.node, s.rank, s.what) for s in verdict.suspects] == [("node-009", 64, "loader")]
    assert verdict.suspects[0].proc.index == 7
    assert "191 ranks wait in all_reduce" in verdict.sentence
    assert "_read_from_stream read_video.py:210" in verdict.sentence


def test_old_heartbeat_makes_it_sure() -> None:
    made = cluster(4, 1, 0, {2: FORWARD}, beats=(beat(118, "forward", 310.0), beat(118, "forward", 312.0)))  # fmt: skip
    verdict = judge(snapshot(*made))
    assert (verdict.kind, verdict.confidence) == ("hang", "high")
    assert "for 5 min 12 s" in verdict.sentence


@pytest.mark.long
def test_24_nodes_fit_a_small_screen() -> None:
    made = snapshot(*with_blocked_loader(), silent("node-025"))
    verdict = judge(made)
    shown = [text for text, _ in lines(made, verdict, clues(made), width=80)]
    assert len(shown) <= 22
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    assert "192 ranks on 25 nodes" in text
    assert "rank 64 loader 7" in text
    assert "ranks 0-63,65-191" in text


@pytest.mark.long
def test_merging_192_times_17_stacks_is_quick() -> None:
    results = [node.result() for node in with_blocked_loader()]
    spent = []
    for _ in range(5):
        begun = time.process_time()
        judge(read_snapshot(results, Sites(), interval_s=2.0, samples=2))
        spent.append(time.process_time() - begun)
    assert min(spent) < 0.6  # 0.2 s on a quiet machine, see the slow test below


@pytest.mark.slow
def test_merging_192_times_17_stacks_takes_a_fifth_of_a_second() -> None:
    results = [node.result() for node in with_blocked_loader()]
    spent = []
    for _ in range(7):
        begun = time.process_time()
        judge(read_snapshot(results, Sites(), interval_s=2.0, samples=2))
        spent.append(time.process_time() - begun)
    print(f"merge and verdict: {min(spent):.3f} s")
    assert min(spent) < 0.2


def test_rank_in_another_collective_is_shown_with_both_call_sites() -> None:
    verdict = judge(snapshot(*cluster(4, 1, 0, {2: BARRIER})))
    assert verdict.kind == "desync"
    assert [(s.node, s.rank) for s in verdict.suspects] == [("node-003", 2)]
    assert verdict.evidence[0] == "ranks 0-1,3 in all_reduce at all_reduce_mean utils.py:9"
    assert verdict.evidence[1] == "rank 2 in barrier at main train.py:325"


def test_equal_groups_accuse_nobody_unless_their_steps_tell() -> None:
    verdict = judge(snapshot(*cluster(2, 1, 0, {1: BARRIER})))
    assert (verdict.kind, verdict.confidence, verdict.suspects) == ("desync", "low", [])
    made = [Made("a"), Made("b")]
    made[0].add("trainer", 0, ALL_REDUCE, world=2, beats=(beat(8, "backward", 60.0),))
    made[1].add("trainer", 1, ALL_REDUCE, world=2, beats=(beat(7, "backward", 61.0),))
    verdict = judge(snapshot(*made))
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("desync", [1])


def test_identical_stacks_are_said_to_tell_nothing() -> None:
    verdict = judge(snapshot(*cluster(8, 8, 2)))
    assert (verdict.kind, verdict.confidence, verdict.suspects) == ("all-same", "low", [])
    assert "ncclras" in " ".join(verdict.next_steps)


def test_wait_for_the_device_counts_as_waiting_for_peers() -> None:
    made = cluster(1, 4, 0, {0: ITEM, 1: ITEM, 2: ITEM, 3: FORWARD})
    made[0].more["source"] = {"/home/me/job/train.py:333": "loss_value = loss.item()"}
    verdict = judge(snapshot(*made))
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("hang", [3])


def test_all_ranks_waiting_for_data_name_the_loaders_that_stand() -> None:
    node = Made("a")
    for rank in range(2):
        pid = node.add("trainer", rank, WAIT_DATA, world=2)
        node.add("loader", rank, READ, index=0, ppid=pid, state="D", wchan="request_wait_answer")
        node.add("loader", rank, IDLE, index=1, ppid=pid)
    verdict = judge(snapshot(node))
    assert verdict.kind in ("data", "hang")
    assert [(s.rank, s.proc.index) for s in verdict.suspects] == [(0, 0), (1, 0)]
    assert "storage" in verdict.sentence


def test_loaders_that_work_are_slow_not_hung() -> None:
    node = Made("a")
    for rank in range(2):
        pid = node.add("trainer", rank, WAIT_DATA, world=2)
        node.add("loader", rank, READ, FORWARD + READ, index=0, ppid=pid, ticks=90)
    verdict = judge(snapshot(node))
    assert (verdict.kind, verdict.exit_code) == ("busy", 3)


def test_stopped_trainer_is_rule_one() -> None:
    node = Made("a")
    for rank in range(4):
        node.add("trainer", rank, FORWARD if rank == 3 else ALL_REDUCE, world=4, state="T" if rank == 3 else "S")  # fmt: skip
    verdict = judge(snapshot(node))
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("hang", [3])
    assert "kill -CONT" in " ".join([verdict.sentence, *verdict.next_steps])


def test_save_that_sleeps_in_the_kernel_is_waiting_and_no_fault_yet() -> None:
    made = cluster(1, 3, 0)[0]
    save = [("save_file", "/opt/env/lib/python3.11/site-packages/safetensors/torch.py", "safetensors/torch.py", 352), *FORWARD[1:]]  # fmt: skip
    made.add("trainer", 3, save, world=4, state="D", wchan="nfs_wait_client_init_complete")
    for row in made.rows:
        row["world"] = 4
    verdict = judge(snapshot(made))
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("waiting", [3])
    assert "asleep in the kernel (nfs_" in verdict.sentence


def test_ranks_that_all_save_wait_for_a_disk_and_name_nobody() -> None:
    made = Made("a")
    save = [("save_file", "/opt/env/lib/python3.11/site-packages/safetensors/torch.py", "safetensors/torch.py", 352), *FORWARD[1:]]  # fmt: skip
    for rank in range(3):
        made.add("trainer", rank, save, world=3, state="D", wchan="percpu_rwsem_wait")
    verdict = judge(snapshot(made))
    assert (verdict.kind, verdict.confidence, verdict.suspects) == ("waiting", "medium", [])
    assert verdict.sentence.startswith("all 3 ranks save; rank 0 saves a checkpoint at save_file ")
    assert "asleep in the kernel (percpu_rwsem_wait)" in verdict.sentence


@pytest.mark.parametrize(
    ("source", "ticks", "progress"),
    [("time.sleep(0.2)", 4, "stuck"), ("time.sleep(0.2)", 30, "moving"), ("queue.get()", 4, "moving")],
)  # fmt: skip
def test_loop_that_sleeps_and_looks_again_goes_nowhere(
    source: str, ticks: int, progress: str
) -> None:
    def look(spent: int, switches: int) -> dict:
        return {"state": "S", "tasks": {"7": ["S", spent, switches, 0, "python"]}}

    stack = Stack((Frame("report", "train.py", 50),), source)
    looks = [look(0, 0), look(ticks, 10)]
    assert judge_progress(looks, [stack, stack], 7, 2.0) == progress


def test_rank_that_got_no_processor_is_not_stuck() -> None:
    made = cluster(4, 1, 0)[:3]
    node = Made("node-004")
    node.add("trainer", 3, FORWARD, world=4, state="R")
    verdict = judge(snapshot(*made, node))
    assert (verdict.kind, verdict.confidence) == ("busy", "low")
    assert "rank 3 (node-004) still works at forward model.py:40" in verdict.sentence


SHELL = [("interact", f"{LIB}/code.py", "code.py", 10), ("main", "/home/me/job/shell.py", "shell.py", 3)]  # fmt: skip
ASLEEP = [("main", "/home/me/job/train.py", "train.py", 12)]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("stack", "source"), [(SHELL, ""), (ASLEEP, "time.sleep(3600)"), (ASLEEP, 'input("go on? ")')]
)
def test_idle_job_is_no_hang(stack: list, source: str, ranks: int) -> None:
    made = cluster(1, ranks, 0, dict.fromkeys(range(ranks), stack))
    made[0].more["source"] = {"/home/me/job/train.py:12": source}
    verdict = judge(snapshot(*made))
    assert (verdict.kind, verdict.confidence, verdict.suspects) == ("unknown", "low", [])
    assert "idle, or waiting for something outside of the job" in verdict.sentence


@pytest.mark.parametrize(("world", "who"), [(1, "rank 0 computes"), (2, "all 2 ranks compute")])
def test_ranks_that_all_compute_in_one_place_are_busy(world: int, who: str) -> None:
    node = Made("node-001")
    for rank in range(world):
        node.add("trainer", rank, FORWARD, world=world, ticks=195)
    verdict = judge(snapshot(node))
    assert (verdict.kind, verdict.confidence, verdict.suspects) == ("busy", "low", [])
    place = "forward model.py:40 <- main"
    assert verdict.sentence == f"{who} in {place}: a long step, or an endless one."


def test_one_rank_that_sleeps_while_others_compute_is_not_idle() -> None:
    made = cluster(1, 3, 0, {0: FORWARD, 1: FORWARD, 2: SHELL})
    assert judge(snapshot(*made)).kind == "hang"


def test_rank_that_burns_cpu_is_named_but_not_with_certainty() -> None:
    made = cluster(4, 1, 0)[:3]
    node = Made("node-004")
    node.add("trainer", 3, FORWARD, world=4, ticks=195)
    verdict = judge(snapshot(*made, node))
    assert (verdict.kind, verdict.confidence) == ("hang", "medium")
    assert "for long or without end" in verdict.sentence


def test_rank_that_has_ended_is_missed() -> None:
    node = Made("a")
    for rank in (0, 1, 3):
        node.add("trainer", rank, ALL_REDUCE, world=4)
    verdict = judge(snapshot(node))
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("hang", [2])
    assert "rank 2" in verdict.sentence


def test_ranks_that_have_all_ended_hang_nowhere() -> None:
    made = cluster(2, 1, 0, state="Z")
    verdict = judge(snapshot(*made))
    assert (verdict.kind, verdict.exit_code) == ("unknown", 3)
    assert verdict.sentence == "no rank runs on any node."


def test_forked_worker_that_outlives_its_rank_is_not_taken_for_it() -> None:
    node = Made("a")
    for rank in (0, 1, 3):
        node.add("trainer", rank, ALL_REDUCE, world=4)
    node.add("trainer", 2, IDLE, world=4)
    verdict = judge(snapshot(node))
    assert (verdict.kind, [(s.rank, s.why) for s in verdict.suspects]) == ("hang", [(2, "no process of it")])  # fmt: skip


def test_ranks_on_nodes_that_were_left_out_are_not_missed() -> None:
    results = [node.result() for node in cluster(4, 1, 0)[:3]]
    made = read_snapshot(results, Sites(), interval_s=2.0, samples=2, is_part=True)
    assert judge(made).kind == "all-same"
    assert judge(read_snapshot(results, Sites(), interval_s=2.0, samples=2)).kind == "hang"


def test_two_jobs_are_not_taken_for_one() -> None:
    made = cluster(1, 2, 0) + cluster(1, 2, 0)
    made[1].name = "node-002"
    assert snapshot(*made).twice == {0: ["node-001", "node-002"], 1: ["node-001", "node-002"]}
    node = Made("a")
    node.add("trainer", 0, ALL_REDUCE, world=1)
    node.add("trainer", 0, FORWARD, world=1)  # a daemon that the rank started
    assert [p.role for p in snapshot(node).procs] == ["trainer", "helper"]


def test_silent_node_with_waiting_peers_is_the_first_suspect() -> None:
    verdict = judge(snapshot(*cluster(2, 2, 0)[:1], silent("node-002")))
    assert (verdict.kind, [s.node for s in verdict.suspects]) == ("hang", ["node-002"])


def test_idle_ranks_beside_a_silent_node_are_those_that_could_be_seen() -> None:
    made = cluster(2, 2, 0, dict.fromkeys(range(4), SHELL))[:1]
    verdict = judge(snapshot(*made, silent("node-002")))
    assert (verdict.kind, verdict.suspects) == ("unknown", [])
    assert verdict.sentence.startswith("all 2 visible ranks stand still, idle")
    assert "no process with rank 2-3 on the nodes that answer" in verdict.evidence


def test_slow_rank_that_still_moves_is_not_accused_of_hanging() -> None:
    made = cluster(4, 1, 0)[:3]
    node = Made("node-004")
    node.add("trainer", 3, FORWARD, BARRIER[1:] + FORWARD, world=4, ticks=150, switches=40)
    verdict = judge(snapshot(*made, node))
    assert (verdict.kind, verdict.exit_code, verdict.confidence) == ("busy", 3, "low")
    assert [s.rank for s in verdict.suspects] == [3]


def test_heartbeats_outrank_equal_stacks() -> None:
    made = cluster(2, 2, 0, beats=(beat(10, "forward", 0.1), beat(14, "forward", 0.1)))
    verdict = judge(snapshot(*made))
    assert (verdict.kind, verdict.confidence) == ("moving", "high")


def test_without_any_stack_it_is_unknown_and_says_why() -> None:
    node = Made("a")
    for rank in range(2):
        node.add("trainer", rank, world=2, error="Permission Denied: Try running again")
    node.more["rights"] = {"scope": 1}
    made = snapshot(node)
    verdict = judge(made)
    assert (verdict.kind, verdict.exit_code) == ("unknown", 3)
    text = "\n".join(line for line, _ in lines(made, verdict, []))
    assert "ptrace_scope = 1" in text
    assert "--sudo" in text


def test_users_sites_come_first() -> None:
    sites = Sites([Site("collective", function="forward", file=r"model\.py$")])
    assert judge(snapshot(*cluster(2, 1, 0, {1: FORWARD}), sites=sites)).kind == "desync"


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    found = snapshot(*cluster(1, 1, 1, {0: FORWARD}))
    verdict = judge(found)
    said = "\n".join(text for text, _ in lines(found, verdict, clues(found), everything=False))
    assert "1 rank on 1 node, " in said
    assert "1 ranks" not in said
    assert "1 loader idle" in said
    assert "loaders" not in said
