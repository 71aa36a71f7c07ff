"""Ranks that wait inside of a backward pass, where one frame is all that Python shows. Made-up dumps.

With gloo and with NCCL's blocking waits that frame rests; with NCCL it may spin, or the CPU runs on and
stops elsewhere. Threads of the libraries burn CPU in any case.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.stacks.judge import judge
from clusterctl.stacks.verdict import Verdict
from tests.clusterctl.stacks.made import (
    ALL_REDUCE,
    BACKWARD,
    FORWARD,
    IDLE,
    LIB,
    READ,
    TORCH,
    WAIT_DATA,
    Made,
    silent,
    snapshot,
)

# Ticks of 10 ms in the 2 s between two looks.
BUSY, RESTS = 190, 0
POLLING = [
    ("pt_nccl_watchdg", BUSY, []), ("pt_nccl_heartbt", RESTS, []), ("NCCL Progress 0", BUSY, []),
    ("gloo_tcp_loop", BUSY, []), ("cuda-EvtHandlr", BUSY, []),
]  # fmt: skip
SAVE = [("save_file", f"{LIB}/site-packages/safetensors/torch.py", "safetensors/torch.py", 352), *FORWARD[1:]]  # fmt: skip
HOOK = [("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py", "torch/distributed/distributed_c10d.py", 4000), ("hook", "/home/me/job/train.py", "train.py", 60)]  # fmt: skip
STUCK_HOOK = [("read", "/home/me/job/offload.py", "offload.py", 12), ("hook", "/home/me/job/train.py", "train.py", 60)]  # fmt: skip


def job(world: int, odd: dict[int, dict[str, Any]], **usual: Any) -> list[Made]:
    """A rank on each node, all in backward but those of `odd`, which say what to add; None leaves one out."""
    made = []
    for rank in range(world):
        node = Made(f"node-{rank}")
        made.append(node)
        what = odd.get(rank, {"stack": BACKWARD, **usual})
        if what is None:
            continue
        loader = what.pop("loader", None) if rank in odd else None
        pid = node.add("trainer", rank, what.pop("stack", BACKWARD), world=world, **what)
        if loader:
            node.add("loader", rank, loader, index=0, ppid=pid)
    return made


def named(verdict: Verdict) -> list[tuple[int | None, str]]:
    return [(s.rank, s.what) for s in verdict.suspects]


CAUSES = {
    "blocked loader": ({"stack": WAIT_DATA, "loader": READ}, "hang", "loader"),
    "idle loaders": ({"stack": WAIT_DATA, "loader": IDLE}, "hang", "trainer"),
    "own code": ({"stack": FORWARD}, "hang", "trainer"),
    "stopped": ({"stack": FORWARD, "state": "T"}, "hang", "trainer"),
    "stopped in backward": ({"state": "T"}, "hang", "trainer"),
    "save": ({"stack": SAVE}, "waiting", "trainer"),
    "dead": (None, "hang", "trainer"),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("beside", [[], POLLING, [("pt_autograd_0", RESTS, []), *POLLING]], ids=["gloo", "nccl", "device"])  # fmt: skip
@pytest.mark.parametrize("world", [2, 4, 64])
def test_one_rank_is_named_while_the_others_rest_in_backward(cause: str, beside: list[Any], world: int) -> None:  # fmt: skip
    odd, kind, what = CAUSES[cause]
    made = job(world, {1: dict(odd) if odd is not None else None}, beside=beside)
    verdict = judge(snapshot(*made))
    assert (verdict.kind, named(verdict)) == (kind, [(1, what)]), verdict.headline
    assert f"{world - 1} rank{'s wait' if world > 2 else ' waits'} in backward" in verdict.sentence


def test_silent_node_of_a_job_that_rests_in_backward_is_the_first_suspect() -> None:
    made = job(4, {})
    verdict = judge(snapshot(*made[:3], silent("node-3")))
    assert (verdict.kind, [s.node for s in verdict.suspects]) == ("hang", ["node-3"])


@pytest.mark.parametrize("world", [2, 4, 64])
def test_backward_that_computes_in_its_device_thread_is_busy_and_not_stuck(world: int) -> None:
    computes = {"beside": [("pt_autograd_0", BUSY, []), *POLLING]}
    verdict = judge(snapshot(*job(world, {1: computes}, beside=POLLING)))
    assert (verdict.kind, verdict.exit_code, named(verdict)) == ("busy", 3, [(1, "trainer")])
    assert "still works" in verdict.sentence
    verdict = judge(snapshot(*job(world, {}, beside=computes["beside"])))
    assert (verdict.kind, named(verdict)) == ("busy", [])


def test_backward_that_computes_in_the_main_thread_is_busy() -> None:
    verdict = judge(snapshot(*job(3, {2: {"ticks": BUSY}})))
    assert (verdict.kind, named(verdict)) == ("busy", [(2, "trainer")])


def test_polling_of_the_libraries_is_no_work() -> None:
    (node, *_) = job(1, {}, beside=POLLING)
    (proc,) = snapshot(node).procs
    assert (proc.kind, proc.progress) == ("backward-wait", "stuck")
    assert proc.cpu_share > 3


@pytest.mark.parametrize("world", [4, 8, 64])
@pytest.mark.parametrize("cause", ["blocked loader", "save", "stopped", "dead"])
@pytest.mark.parametrize("place", [FORWARD, BACKWARD], ids=["operation", "backward"])
def test_crowd_that_spins_where_its_launch_queue_is_full_waits(
    place: list[Any], cause: str, world: int
) -> None:
    odd, kind, what = CAUSES[cause]
    made = job(world, {1: dict(odd) if odd is not None else None}, stack=place, ticks=BUSY, beside=POLLING)  # fmt: skip
    verdict = judge(snapshot(*made))
    assert (verdict.kind, named(verdict)) == (kind, [(1, what)]), verdict.headline
    assert f"{world - 1} ranks are in {place[0][0]}, as if waiting" in verdict.sentence
    assert any("launch queue" in text for text in verdict.evidence)
    assert verdict.confidence != "high" or cause in ("stopped", "dead")


def test_rank_that_logs_its_loss_stands_beside_a_crowd() -> None:
    """One is surely in a collective, six have run on into the next operation, one waits for data."""
    made = job(8, {0: {"stack": ALL_REDUCE}, 1: {"stack": WAIT_DATA, "loader": READ}}, stack=FORWARD, ticks=BUSY)  # fmt: skip
    verdict = judge(snapshot(*made))
    assert (verdict.kind, named(verdict)) == ("hang", [(1, "loader")]), verdict.headline


def test_crowd_without_a_reason_to_wait_computes() -> None:
    verdict = judge(snapshot(*job(8, {}, stack=FORWARD, ticks=BUSY)))
    assert (verdict.kind, named(verdict)) == ("busy", [])


def test_most_ranks_are_not_accused_because_one_waits() -> None:
    verdict = judge(snapshot(*job(8, {1: {"stack": ALL_REDUCE}}, stack=FORWARD)))
    assert (verdict.kind, verdict.confidence, named(verdict)) == ("hang", "low", [])
    assert "1 rank waits in all_reduce; 7 others are stuck" in verdict.sentence
    assert "ranks 0,2-7 in forward model.py:40" in verdict.sentence


def test_explicit_collective_of_one_rank_does_not_accuse_all_in_backward() -> None:
    verdict = judge(snapshot(*job(8, {3: {"stack": ALL_REDUCE}})))
    assert (verdict.kind, named(verdict)) == ("desync", [(3, "trainer")])
    assert "ranks 0-2,4-7 in backward at main train.py:314" in verdict.evidence[0]


def test_all_in_the_same_backward_accuse_nobody() -> None:
    verdict = judge(snapshot(*job(8, {}, beside=POLLING)))
    assert (verdict.kind, verdict.confidence, named(verdict)) == ("all-same", "low", [])


def test_nobody_is_accused_where_all_stand_and_no_stack_tells() -> None:
    other = [("lookup", "/home/me/job/cache.py", "cache.py", 7), *FORWARD[1:]]
    verdict = judge(snapshot(*job(4, {0: {"stack": other}}, stack=FORWARD)))
    assert (verdict.kind, verdict.confidence, named(verdict)) == ("hang", "low", [])
    assert "ranks 1-3 in forward model.py:40 <- main; rank 0 in lookup cache.py:7" in verdict.sentence  # fmt: skip
    assert "all 4 ranks are stuck, rank 0 (node-0) elsewhere than the other 3" in verdict.sentence
    assert verdict.evidence[0].startswith("rank 0")


def test_ranks_of_which_half_stand_elsewhere_are_not_told_apart() -> None:
    other = [("lookup", "/home/me/job/cache.py", "cache.py", 7), *FORWARD[1:]]
    odd = {rank: {"stack": other} for rank in (0, 1)}
    assert "elsewhere" not in judge(snapshot(*job(4, odd, stack=FORWARD))).sentence


def test_backward_of_old_torch_waits_as_the_new_one_does() -> None:
    """Before 2.3 the call into C++ is in autograd itself."""
    old = [("backward", f"{TORCH}/autograd/__init__.py", "torch/autograd/__init__.py", 266), *BACKWARD[1:]]  # fmt: skip
    verdict = judge(snapshot(*job(8, {3: {"stack": FORWARD}}, stack=old)))
    assert (verdict.kind, named(verdict)) == ("hang", [(3, "trainer")])
    assert "7 ranks wait in backward" in verdict.sentence


@pytest.mark.parametrize(
    ("function", "library"),
    [
        ("gloo::transport::tcp::UnboundBuffer::waitRecv", "libtorch_cpu.so"),
        ("c10d::ProcessGroupNCCL::WorkNCCL::synchronize", "libtorch_cuda.so"),
        ("c10d::TCPStore::get", "libtorch_cpu.so"),
        ("ncclGroupEnd", "libnccl.so.2"),
        ("cudaStreamSynchronize", "libcudart.so.12"),
        ("MPI_Allreduce", "libmpi.so.40"),
    ],
)
def test_wait_in_c_is_known_by_its_frames(function: str, library: str) -> None:
    frames = [("0x7fa2d1487d71", "/lib/libc.so.6", "libc.so.6", 0), (function, f"/lib/{library}", library, 0), *FORWARD[1:]]  # fmt: skip
    verdict = judge(snapshot(*job(4, {2: {"stack": FORWARD}}, stack=frames)))
    assert (verdict.kind, named(verdict)) == ("hang", [(2, "trainer")])
    assert f"3 ranks wait in {function}" in verdict.sentence


def test_rank_alone_that_stands_is_named() -> None:
    verdict = judge(snapshot(*job(1, {0: {"stack": FORWARD}})))
    assert (verdict.kind, named(verdict)) == ("hang", [(0, "trainer")])


def test_hooks_of_a_backward_pass_tell_where_it_stands() -> None:
    in_hook = {"beside": [("pt_autograd_0", RESTS, HOOK)]}
    (proc,) = snapshot(job(1, {0: dict(in_hook)})[0]).procs
    assert (proc.kind, proc.operation, proc.progress) == ("collective", "all_gather_into_tensor", "stuck")  # fmt: skip
    # A hook that hangs is the rank's own fault, not a wait.
    verdict = judge(snapshot(*job(4, {2: {"beside": [("pt_autograd_0", RESTS, STUCK_HOOK)]}})))
    assert (verdict.kind, named(verdict)) == ("hang", [(2, "trainer")])
    assert "read offload.py:12" in verdict.sentence


def test_rank_whose_stack_could_not_be_read_is_not_accused() -> None:
    made = job(4, {})[:3]
    node = Made("node-3")
    node.add("trainer", 3, world=4, error="no end in 5 s, killed")
    verdict = judge(snapshot(*made, node))
    assert (verdict.kind, verdict.exit_code, named(verdict)) == ("unknown", 3, [])
    assert "no stack of rank 3 (node-3) could be read" in verdict.sentence


def test_rank_that_ended_is_named_also_when_the_others_stand_elsewhere() -> None:
    made = job(3, {1: None, 2: {"stack": [("lookup", "/home/me/job/cache.py", "cache.py", 7)]}}, stack=FORWARD)  # fmt: skip
    verdict = judge(snapshot(*made))
    assert (verdict.kind, verdict.confidence, named(verdict)) == ("hang", "medium", [(1, "trainer")])  # fmt: skip


def test_rank_that_is_stopped_is_named_also_when_nobody_waits_yet() -> None:
    verdict = judge(snapshot(*job(2, {1: {"stack": FORWARD, "state": "T"}}, stack=FORWARD, ticks=BUSY)))  # fmt: skip
    assert (verdict.kind, named(verdict)) == ("hang", [(1, "trainer")])
