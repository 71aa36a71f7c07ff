"""Five of five: each fault on real gloo ranks with real loader workers, the culprit named every time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.stacks.job import GlooJob
from tests.clusterctl.stacks.stalling_mount import StallingMount
from tests.clusterctl.stacks.test_verdicts import (  # noqa: F401 - fixtures
    NODES,
    Dump,
    dump,
    fault,
    goes_on,
    has_hung,
    job,
    nodes,
    suspects,
)
from tests.clusterctl.stacks.test_verdicts import decided as decide

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = 5


@pytest.fixture(params=range(ROUNDS))
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param) % 3


def who(rank: int, role: str = "trainer") -> tuple[str, int, str]:
    return (NODES[rank], rank, role)


def named(document: dict) -> set[tuple[str, int, str]]:
    return {(node, rank, role) for node, rank, role, _ in suspects(document)}


def test_nothing_wrong(rank: int, dump: Dump) -> None:  # noqa: F811
    code, document = decide(dump)
    assert (code, document["verdict"]["kind"], named(document)) == (0, "moving", set())


def test_blocked_getitem(rank: int, job: GlooJob, dump: Dump) -> None:  # noqa: F811
    job.block(rank)
    try:
        wait_until(lambda: has_hung(job, rank, "data"), 60)
        code, document = dump()
    finally:
        job.unblock(rank)
        goes_on(job)
    assert (code, named(document)) == (1, {who(rank, "loader")})
    assert "_read_from_stream" in document["verdict"]["suspects"][0]["site"]


def test_stopped_worker(rank: int, job: GlooJob, dump: Dump) -> None:  # noqa: F811
    worker = job.workers(rank)[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        wait_until(lambda: has_hung(job, rank, "data"), 60)
        code, document = dump()
    finally:
        os.kill(worker, signal.SIGCONT)
        goes_on(job)
    assert (code, suspects(document)) == (1, [(*who(rank, "loader"), 0)])


@pytest.mark.parametrize(
    ("order", "phase", "site"),
    [("gil", "forward", "hold_gil"), ("spin", "forward", "spin_for_ever"), ("checkpoint", "checkpoint", "save_checkpoint")],
)  # fmt: skip
def test_rank_that_does_something_else(rank: int, job: GlooJob, dump: Dump, order: str, phase: str, site: str) -> None:  # noqa: F811  # fmt: skip
    with fault(job, order, rank, phase):
        code, document = decide(dump)
    assert (code, named(document)) == (1, {who(rank)})
    assert site in document["verdict"]["sentence"]
    assert document["verdict"]["kind"] == ("waiting" if order == "checkpoint" else "hang")


def test_node_whose_sshd_is_gone(rank: int, job: GlooJob, nodes: dict, dump: Dump) -> None:  # noqa: F811  # fmt: skip
    nodes[NODES[rank]] = TransportError("tcp", "connection refused")
    code, document = decide(dump)
    assert (code, document["verdict"]["kind"]) == (3, "no-answer")
    assert [s["node"] for s in document["verdict"]["suspects"]] == [NODES[rank]]
    with fault(job, "gil", rank, "forward"):
        code, document = dump()
    assert (code, document["verdict"]["kind"]) == (1, "hang")
    assert [s["node"] for s in document["verdict"]["suspects"]] == [NODES[rank]]


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs FUSE")
def test_stalled_read_of_a_dead_mount(rank: int, job: GlooJob, dump: Dump, tmp_path: Path) -> None:  # noqa: F811  # fmt: skip
    with StallingMount(tmp_path / "mount") as mount:
        link = job.folder / "slow-file"
        link.symlink_to(mount.path)
        flag = job.folder / f"slow-{rank}"
        flag.touch()
        try:
            wait_until(lambda: has_hung(job, rank, "data"), 60)
            code, document = dump()
        finally:
            flag.unlink()
            mount.release()
            goes_on(job)
            link.unlink()
    assert (code, named(document)) == (1, {who(rank, "loader")})
    suspect = document["verdict"]["suspects"][0]
    assert "_read_from_stream" in suspect["site"]
    assert suspect["file"] == str(mount.path)


@pytest.mark.skipif(not Path("/sys/fs/cgroup/freezer/cgroup.procs").exists(), reason="no freezer")
@pytest.mark.parametrize("role", ["trainer", "loader"])
def test_frozen_process(rank: int, job: GlooJob, dump: Dump, role: str) -> None:  # noqa: F811
    cage = Path(f"/sys/fs/cgroup/freezer/clusterctl-stacks-{os.getpid()}")
    cage.mkdir()
    pid = job.ranks[rank].pid if role == "trainer" else job.workers(rank)[1]
    try:
        (cage / "cgroup.procs").write_text(str(pid))
        (cage / "freezer.state").write_text("FROZEN")
        if role == "loader":
            wait_until(lambda: has_hung(job, rank, "data"), 60)
        else:
            others = [r for r in range(3) if r != rank]
            wait_until(lambda: all(job.still(r, 0.5) for r in others), 60)
        code, document = dump()
    finally:
        (cage / "freezer.state").write_text("THAWED")
        (cage.parent / "cgroup.procs").write_text(str(pid))
        goes_on(job)
        cage.rmdir()
    assert (code, named(document)) == (1, {who(rank, role)})
    assert "frozen" in document["verdict"]["sentence"]


@pytest.mark.parametrize("order", ["extra-barrier", "skip"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_rank_in_another_collective(
    number: int, order: str, dump: Dump, tmp_path: Path, job: GlooJob  # noqa: F811
) -> None:  # fmt: skip
    guilty = 1 + number % 2  # rank 0 gives the orders
    folder = tmp_path / "job"
    folder.mkdir()
    own = GlooJob(folder, NODES, 3, workers=1)
    try:
        own.wait_until_up()
        own.order(f"{order} {guilty}")
        wait_until(lambda: all(own.still(rank, 0.7) for rank in range(3)), 60)
        code, document = dump(run_id=own.run_id)
    finally:
        own.end()
    assert (code, document["verdict"]["kind"]) == (1, "desync"), document["verdict"]
    assert named(document) == {who(guilty)}
    sites = " ".join(document["verdict"]["evidence"])
    assert "all_reduce at step gloo_trainer.py" in sites
