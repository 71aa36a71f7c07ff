"""dump-stacks names the culprit of real hangs of real gloo ranks with real loader workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import TransportError
from clusterctl.settings import Settings
from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.payload.local import LocalConnection, LocalTransport
from tests.clusterctl.stacks.job import GlooJob

NODES = ["n1", "n2", "n3"]
Dump = Callable[..., tuple[int, dict]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooJob]:
    job = GlooJob(tmp_path_factory.mktemp("gloo"), NODES, 3)
    try:
        job.wait_until_up()
        yield job
    finally:
        job.end()


@pytest.fixture
def nodes() -> dict[str, LocalConnection | TransportError]:
    return {name: LocalConnection() for name in NODES}


@pytest.fixture
def dump(
    job: GlooJob, nodes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Dump:  # fmt: skip
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("".join(f"{name} host=127.0.0.1\n" for name in NODES))
    monkeypatch.setattr(Settings, "transport", lambda self: LocalTransport(nodes))

    def dump(
        *words: str, interval_s: float = 0.6, run_id: str = job.run_id, by: tuple[str, ...] = ()
    ) -> tuple[int, dict]:
        capsys.readouterr()
        code = run(["dump-stacks", str(hostfile), *(by or ("--run", run_id)), "--interval", str(interval_s), "--dump-timeout", "10", "--json", *words])  # fmt: skip
        return code, json.loads(capsys.readouterr().out)

    return dump


def suspects(document: dict) -> list[tuple[str, int, str, int | None]]:
    return [(s["node"], s["rank"], s["role"], s["index"]) for s in document["verdict"]["suspects"]]


def goes_on(job: GlooJob) -> None:
    """Wait until the job takes steps again, so that the next test finds it healthy."""
    before = [job.beat(rank)["step"] for rank in range(job.world)]

    def has_stepped() -> bool:
        job.open_fifo()
        return all(job.beat(rank)["step"] > before[rank] + 3 for rank in range(job.world))

    wait_until(has_stepped, 60)


def has_hung(job: GlooJob, rank: int, phase: str) -> bool:
    """One rank has been in `phase` for a while, the others in the collective."""
    return all(job.phase_of(r, phase if r == rank else "backward") for r in range(job.world))


@contextlib.contextmanager
def fault(job: GlooJob, order: str, rank: int, phase: str) -> Iterator[None]:
    """A fault on one rank, until the block is left."""
    job.order(f"{order} {rank}")
    wait_until(lambda: has_hung(job, rank, phase), 60)
    job.order("go")
    try:
        yield
    finally:
        (job.folder / "release").touch()
        if order == "gil":
            (job.folder / "gil").write_bytes(b"x")
        goes_on(job)
        (job.folder / "release").unlink()


def decided(dump: Dump, *words: str) -> tuple[int, dict]:
    """A verdict other than "too short to tell", which a loaded machine may need patience for."""
    for interval_s in (0.6, 2.0, 5.0, 10.0):
        code, document = dump(*words, interval_s=interval_s)
        if document["verdict"]["kind"] != "busy":
            break
    return code, document


@pytest.mark.long
def test_healthy_job_is_said_to_move(dump: Dump) -> None:
    code, document = decided(dump)
    assert (code, document["verdict"]["kind"], suspects(document)) == (0, "moving", [])
    assert document["verdict"]["confidence"] == "high"


@pytest.mark.long
def test_blocked_getitem_is_found_below_the_rank_that_waits_for_data(job: GlooJob, dump: Dump) -> None:  # fmt: skip
    job.block(1)
    try:
        wait_until(lambda: has_hung(job, 1, "data"), 60)
        code, document = dump()
    finally:
        job.unblock(1)
        goes_on(job)
    assert (code, document["verdict"]["kind"]) == (1, "hang")
    found = suspects(document)
    assert {(node, rank, role) for node, rank, role, _ in found} == {("n2", 1, "loader")}
    assert "_read_from_stream" in document["verdict"]["suspects"][0]["site"]
    assert "2 ranks wait in all_reduce" in document["verdict"]["sentence"]


@pytest.mark.long
def test_stopped_worker_is_found_and_not_woken(job: GlooJob, dump: Dump) -> None:
    worker = job.workers(2)[1]
    os.kill(worker, signal.SIGSTOP)
    try:
        wait_until(lambda: has_hung(job, 2, "data"), 60)
        code, document = dump()
        assert Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    finally:
        os.kill(worker, signal.SIGCONT)
        goes_on(job)
    assert (code, suspects(document)) == (1, [("n3", 2, "loader", 1)])
    assert "stopped by a signal" in document["verdict"]["sentence"]


@pytest.mark.long
def test_rank_in_a_long_c_call_that_holds_the_gil(job: GlooJob, dump: Dump) -> None:
    with fault(job, "gil", 1, "forward"):
        code, document = dump()
    assert (code, suspects(document)) == (1, [("n2", 1, "trainer", None)])
    assert document["verdict"]["suspects"][0]["site"].startswith("hold_gil gloo_trainer.py")


@pytest.mark.long
def test_rank_that_spins(job: GlooJob, dump: Dump) -> None:
    with fault(job, "spin", 0, "forward"):
        _, document = dump(interval_s=1.5)
    # Where others take the processor, "burns CPU" and "works slowly" look alike.
    assert document["verdict"]["kind"] in ("hang", "busy")
    assert suspects(document) == [("n1", 0, "trainer", None)]
    assert "spin_for_ever" in document["verdict"]["sentence"]


@pytest.mark.long
def test_long_save_is_waiting_and_no_fault(job: GlooJob, dump: Dump) -> None:
    with fault(job, "checkpoint", 0, "checkpoint"):
        code, document = dump()
    assert (code, document["verdict"]["kind"]) == (1, "waiting")
    assert suspects(document) == [("n1", 0, "trainer", None)]
    assert "save_checkpoint" in document["verdict"]["sentence"]


@pytest.mark.long
def test_without_a_tag_the_pattern_finds_ranks_and_workers(job: GlooJob, dump: Dump) -> None:
    """As for a job that was started by torchrun or colossalai, not by us."""
    by = ("--match", f"python.*gloo_trainer\\.py {job.folder}")
    _, document = dump(by=by)
    roles = [p["role"] for node in document["nodes"] for p in node["processes"]]
    assert sorted(roles) == ["loader"] * 6 + ["trainer"] * 3


@pytest.mark.long
def test_silent_node_of_a_moving_job_is_no_hang(nodes: dict, dump: Dump) -> None:
    nodes["n2"] = TransportError("tcp", "connection refused")
    code, document = decided(dump)
    assert (code, document["verdict"]["kind"]) == (3, "no-answer")
    assert [s["node"] for s in document["verdict"]["suspects"]] == ["n2"]
    assert "all 2 " in document["verdict"]["sentence"]


@pytest.mark.long
def test_silent_node_of_a_hanging_job_is_the_first_suspect(job: GlooJob, nodes: dict, dump: Dump) -> None:  # fmt: skip
    with fault(job, "gil", 1, "forward"):
        nodes["n2"] = TransportError("tcp", "connection refused")
        code, document = dump()
    assert (code, document["verdict"]["kind"]) == (1, "hang")
    assert [s["node"] for s in document["verdict"]["suspects"]] == ["n2"]


@pytest.mark.long
def test_watching_ends_when_something_is_stuck(
    job: GlooJob, dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def block_later() -> None:
        steps = job.beat(0)["step"]
        wait_until(lambda: job.beat(0)["step"] > steps + 5, 60)
        job.block(1)

    blocker = threading.Thread(target=block_later)
    blocker.start()
    try:
        out = tmp_path / "out"
        profile = tmp_path / "profile.json"
        code, document = dump("--watch", "--out", str(out), "--speedscope", str(profile))
    finally:
        blocker.join()
        job.unblock(1)
        goes_on(job)
    assert (code, document["verdict"]["kind"]) == (1, "hang")
    assert len(list(out.glob("n2/0001-loader*.txt"))) == 2
    assert json.loads(profile.read_text())["profiles"][0]["endValue"] == 9
    capsys.readouterr()
    assert run(["dump-stacks", "--diff", str(out), str(out / "report.json")]) == 0
    assert {line[0] for line in capsys.readouterr().out.splitlines()} == {"="}


@pytest.mark.long
def test_ranks_in_different_collectives_are_both_shown(job: GlooJob, dump: Dump) -> None:
    """The last test of this job: nothing brings these ranks together again."""
    job.order("extra-barrier 2")
    wait_until(lambda: all(job.phase_of(rank, "backward") for rank in range(3)), 60)
    code, document = dump()
    assert (code, document["verdict"]["kind"]) == (1, "desync")
    assert suspects(document) == [("n3", 2, "trainer", None)]
    text = " ".join(document["verdict"]["evidence"])
    assert "rank 2 in barrier at step gloo_trainer.py" in text
    assert "ranks 0-1 in all_reduce at step gloo_trainer.py" in text
