"""Verdicts on a standard DistributedDataParallel program over real gloo ranks, looked at by the real py-spy.

Its ranks meet in the backward pass only, where gloo waits in C++. So whatever one of them does, all others
stand in loss.backward().
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusterctl.jobs.trees import start_of, state, wait_until
from tests.clusterctl.stacks.job import DdpJob
from tests.clusterctl.stacks.test_verdicts import NODES, Dump, dump, nodes  # noqa: F401 - fixtures

FAULTS = ("block", "save", "stop", "compute", "device", "dead")
ALL = {"DEVICE": "1", "PIN": "1"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DdpJob]:
    """Rank 0 has an autograd thread, rank 1 pins memory, rank 2 has neither."""
    job = DdpJob(tmp_path_factory.mktemp("ddp"), NODES, 3, {0: {"DEVICE": "1"}, 1: {"PIN": "1"}})
    try:
        job.wait_until_up()
        yield job
    finally:
        job.end()


def hang(job: DdpJob, fault: str, rank: int) -> Callable[[], None]:
    """Let a rank do something wrong, wait until all others wait for it; returns what ends it."""
    pid = job.ranks[rank].pid
    if fault == "stop":
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state(pid, start_of(pid)) == "T", 20)
    elif fault == "dead":
        # Its worker holds the sockets of the rank that forked it, as one does that outlives a rank.
        (worker,) = job.workers(rank)
        os.kill(worker, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        job.ranks[rank].wait()
    else:
        job.begin(fault, rank)
    rests = [r for r in range(job.world) if r != rank or fault in ("block", "device")]
    wait_until(lambda: min(job.rested_s(r) for r in rests) > 1.0, 60)

    def end() -> None:
        if fault == "stop":
            os.kill(pid, signal.SIGCONT)
        elif fault != "dead":
            job.finish(fault, rank)

    return end


def check(fault: str, rank: int, world: int, code: int, document: dict) -> None:
    """The verdict names the right rank with the right cause, and nobody else."""
    verdict = document["verdict"]
    role = "loader" if fault == "block" else "trainer"
    assert [(s["rank"], s["role"] or s["what"]) for s in verdict["suspects"]] == [(rank, role)], verdict  # fmt: skip
    kind, sentence = {
        "block": ("hang", "_read_from_stream ddp_trainer.py"), "save": ("waiting", "saves a checkpoint"),
        "stop": ("hang", "is stopped by a signal"), "compute": ("busy", "still works"), "device": ("busy", "still works"),
        "dead": ("hang", "has ended"),
    }[fault]  # fmt: skip
    assert (code, verdict["kind"]) == (3 if kind == "busy" else 1, kind), verdict
    assert sentence in verdict["sentence"], verdict
    assert f"{world - 1} rank{'s wait' if world > 2 else ' waits'} in backward" in verdict["sentence"], verdict  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "rank"), [("block", 1), ("block", 2), ("save", 2), ("stop", 0), ("compute", 1), ("device", 0)]
)  # fmt: skip
def test_one_rank_is_named_and_why(fault: str, rank: int, job: DdpJob, dump: Dump) -> None:  # noqa: F811  # fmt: skip
    end = hang(job, fault, rank)
    try:
        code, document = dump(interval_s=1.0)
    finally:
        end()
    check(fault, rank, 3, code, document)


@pytest.mark.long
def test_rank_that_is_gone_is_named(job: DdpJob, dump: Dump) -> None:  # noqa: F811
    """The last test of this job."""
    hang(job, "dead", 2)
    check("dead", 2, 3, *dump(interval_s=1.0))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("features", [{}, ALL], ids=["plain", "as with a GPU"])
def test_campaign(world: int, features: dict[str, str], dump: Dump, tmp_path: Path) -> None:  # noqa: F811  # fmt: skip
    """Every fault on every rank, then a dead one."""
    folder = tmp_path / "job"
    folder.mkdir()
    own = DdpJob(folder, NODES, world, dict.fromkeys(range(world), features))
    rounds = 0
    try:
        own.wait_until_up()
        for fault in FAULTS[:-1]:
            for rank in range(world if features or fault != "device" else 0):
                end = hang(own, fault, rank)
                try:
                    code, document = dump(run_id=own.run_id, interval_s=1.0)
                finally:
                    end()
                check(fault, rank, world, code, document)
                rounds += 1
        hang(own, "dead", world - 1)
        check("dead", world - 1, world, *dump(run_id=own.run_id, interval_s=1.0))
    finally:
        own.end()
    print(f"{world} ranks: {rounds + 1} faults, each named")
