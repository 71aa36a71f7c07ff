"""Which of several deaths is the root: evidence first, the earliest event second."""

from __future__ import annotations

import itertools
import math
import signal

import pytest

from clusterctl.launch import deaths
from clusterctl.launch.causes.kinds import Evidence, Fact, Kind, Source
from clusterctl.launch.deaths import Death
from clusterctl.launch.root_cause import NOT_STATED, Judgement, judge

WARNING = "UserWarning: torch.cuda.amp.GradScaler is deprecated"
CAUSE = "error: no batch for step 4: no clip is left"
PEER = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:4711"
LOST = "error: rank 1: another rank has ended, and this one ends with it"
WATCHDOG = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=X)"


def died(
    rank: int, code: int | None, *tail: str, at_s: float = 0.0, node: str | None = None
) -> Death:
    how = "end not seen" if code is None else f"exit code {code}"
    found = deaths.sentence(tail)
    how = f"{how}: {found}" if found else how
    return Death(node or f"node-{rank + 1}", rank, code, how, tail, at_s, found)


def judged(*told: Death, stopped_s: float = math.inf, facts: tuple[Fact, ...] = ()) -> Judgement:
    homes = {rank: f"node-{rank + 1}" for rank in range(4)}
    found = judge(told, facts, homes=homes, stopped_s=stopped_s)
    assert found is not None
    return found


@pytest.mark.parametrize("code", [1, None, -signal.SIGTERM])
@pytest.mark.parametrize("first", [0, 1])
def test_rank_whose_log_has_the_sentence_is_the_root_whichever_ends_first(
    first: int, code: int | None
) -> None:
    """Both end within 5 ms; nobody may have seen the exit code of the one that says why."""
    with_cause = died(0, code, WARNING, CAUSE, "  hint: check", at_s=0.0 if first == 0 else 0.005)
    without = died(1, 1, WARNING, at_s=0.0 if first == 1 else 0.005)
    for order in itertools.permutations([with_cause, without]):
        assert deaths.cause(order, 10.0) is with_cause
        found = judged(*order)
        assert (found.root.rank, found.root.is_root) == (0, True)
        assert found.root.evidence == Evidence(
            Source.RANK_LOG, "no batch for step 4: no clip is left"
        )
        (other,) = found.consequences
        assert (other.rank, other.kind, other.is_root) == (1, Kind.UNKNOWN, False)


def test_sentence_that_arrives_after_the_stop_still_names_the_root() -> None:
    victim = died(1, 1, WARNING)
    assert deaths.cause([victim], deaths.SETTLE_S) is victim  # the run is stopped for it
    late = died(0, 1, CAUSE, at_s=4.0)
    assert judged(victim, late, stopped_s=1.6).root.rank == 0
    stopped = died(0, -signal.SIGTERM, WARNING, CAUSE, at_s=4.0)
    assert judged(victim, stopped, stopped_s=1.6).root.rank == 0


@pytest.mark.parametrize(
    "late",
    [
        died(0, -signal.SIGTERM, WARNING, at_s=4.0),
        died(0, -signal.SIGKILL, at_s=4.0),
        died(0, 130, "saved", at_s=4.0),
        died(0, 1, PEER, at_s=4.0),
        # A traceback far above the end is of an error that the program has survived.
        died(0, -signal.SIGTERM, "ConnectError: W&B", *map(str, range(40)), at_s=4.0),
    ],
)
def test_rank_that_the_stop_itself_ended_is_not_the_root(late: Death) -> None:
    assert judged(died(1, 1, WARNING), late, stopped_s=1.6).root.rank == 1


def test_victim_that_is_heard_of_during_the_stop_is_a_consequence() -> None:
    late = died(0, -signal.SIGTERM, LOST, at_s=4.0)
    found = judged(died(1, -signal.SIGKILL), late, stopped_s=1.6)
    assert [(one.rank, one.kind) for one in found.consequences] == [(0, Kind.PEER_LOST)]


@pytest.mark.parametrize("victim", [PEER, LOST, WATCHDOG])
@pytest.mark.parametrize("code", [1, -signal.SIGABRT])
def test_rank_that_blames_a_peer_is_never_the_root_of_one_that_does_not(
    victim: str, code: int
) -> None:
    found = judged(died(1, code, victim), died(0, 7, "the last words", at_s=1.0))
    assert (found.root.rank, found.root.kind) == (0, Kind.UNKNOWN)
    assert found.consequences[0].kind.is_consequence


def test_where_all_ranks_are_victims_no_root_is_claimed() -> None:
    found = judged(died(1, -signal.SIGABRT, WATCHDOG), died(0, 1, PEER, at_s=1.0))
    assert (found.root.kind, found.root.is_root) == (Kind.NCCL_WATCHDOG, False)
    assert found.root.note == NOT_STATED


def test_sigkill_is_a_signal_and_no_oom_without_the_kernels_word() -> None:
    killed = died(2, -signal.SIGKILL, "Killed", at_s=0.1)
    found = judged(died(1, 1, PEER), killed)
    assert (found.root.name, found.root.note) == ("signal-9", "possibly out of memory; unconfirmed")
    counted = Fact(Kind.OOM_KERNEL, "node-3", Evidence(Source.KERNEL, "oom_kill 1"))
    found = judged(died(1, 1, PEER), killed, facts=(counted,))
    assert (found.root.name, found.root.rank, found.root.note) == ("oom-kernel", 2, "")
    elsewhere = Fact(Kind.OOM_KERNEL, "node-3", Evidence(Source.KERNEL, "oom_kill 1"), rank=3)
    assert judged(killed, facts=(elsewhere,)).death is None


def test_broken_gpu_is_the_root_of_what_its_rank_prints() -> None:
    line = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
    broken = Fact(Kind.XID, "node-2", Evidence(Source.KERNEL, line), detail="79")
    found = judged(died(1, 1, "error: rank 1: CUDA error: unknown error"), facts=(broken,))
    assert (found.root.name, found.root.is_of_node, found.root.node) == ("xid-79", True, "node-2")
    # 31 and 13 are what the driver logs when a program reads beyond its memory.
    line = "NVRM: Xid (PCI:0000:44:00): 31, pid=7, MMU Fault"
    usual = Fact(Kind.XID, "node-2", Evidence(Source.KERNEL, line), detail="31")
    found = judged(died(1, 1, "error: rank 1: CUDA error: unknown error"), facts=(usual,))
    assert found.root.kind == Kind.CUDA_ERROR
    assert not found.consequences[0].is_of_node


def test_rank_that_the_sentence_names_is_the_one() -> None:
    root = judged(died(0, 1, "error: rank 3: ValueError: no frames")).root
    assert (root.rank, root.node, root.detail) == (3, "node-4", "ValueError")


def test_wrong_environment_of_one_node_is_bound_to_it_and_of_all_is_not() -> None:
    text = "ModuleNotFoundError: No module named 'av'"
    one = judged(died(1, 1, text), died(0, 1, PEER)).root
    assert (one.is_of_node, one.is_deterministic) == (True, False)
    both = judged(died(1, 1, text), died(0, 1, text)).root
    assert (both.is_of_node, both.is_deterministic) == (False, True)


def test_signature_is_the_same_for_the_same_cause_at_another_step_and_rank() -> None:
    first = judged(died(1, 1, "error: rank 1: ValueError: clip 17 of step 4 at 0x7f00")).root
    again = judged(died(2, 1, "error: rank 2: ValueError: clip 3 of step 9 at 0x7a11")).root
    other = judged(died(2, 1, "error: rank 2: ValueError: no frames")).root
    assert first.signature == again.signature != other.signature


def test_nothing_died_nothing_is_judged() -> None:
    assert judge([]) is None
    assert deaths.cause([], 1.0) is None


DAYS_S = 5 * 86400.0


def xid(number: int, at_s: float, node: str = "node-4") -> Fact:
    line = f"NVRM: Xid (PCI:0000:44:00): {number}, GPU has fallen off the bus"
    return Fact(Kind.XID, node, Evidence(Source.KERNEL, line), str(number), at_s=at_s)


@pytest.mark.parametrize("number", [79, 74, 64])
def test_old_xid_of_another_node_is_no_root(number: int) -> None:
    """The run has trained on for days after it."""
    stated = died(2, 1, "ValueError: no frames", at_s=DAYS_S)
    peer = died(3, 1, PEER, at_s=DAYS_S + 1)
    found = judged(stated, peer, facts=(xid(number, 0.0),))
    assert (found.root.kind, found.root.node) == (Kind.WORKER_EXCEPTION, "node-3")
    assert [one.kind for one in found.consequences] == [Kind.PEER_LOST]
    assert judged(stated, facts=(xid(number, DAYS_S - 60),)).root.name == f"xid-{number}"


def test_old_xid_of_the_dead_ranks_node_is_a_root_unless_the_input_is_one() -> None:
    killed = died(3, -signal.SIGBUS, at_s=DAYS_S)
    assert judged(killed, facts=(xid(79, 0.0),)).root.name == "xid-79"
    stated = died(3, 1, "ValueError: no frames", at_s=DAYS_S)
    assert judged(stated, facts=(xid(79, 0.0),)).root.kind == Kind.WORKER_EXCEPTION
    assert judged(stated, facts=(xid(79, DAYS_S - 3600),)).root.name == "xid-79"


def test_xid_before_the_patience_of_a_watchdog_is_a_root() -> None:
    late = died(0, -signal.SIGABRT, WATCHDOG, at_s=DAYS_S)
    assert judged(late, facts=(xid(79, DAYS_S - 1800),)).root.name == "xid-79"
    assert judged(late, facts=(xid(79, 0.0),)).root.kind == Kind.NCCL_WATCHDOG
    found = judge((), (xid(79, DAYS_S - 1800),), stopped_s=DAYS_S)
    assert found is not None
    assert found.root.name == "xid-79"
    assert judge((), (xid(79, 0.0),), stopped_s=DAYS_S) is None
