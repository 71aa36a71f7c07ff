"""The payload and a real server of RAS's protocol: what comes home, how late, and at what cost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.facts import RasAnswer, Unknown
from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.payload.dump import ras
from clusterctl.remote.cluster import Cluster
from clusterctl.stacks.diagnose import Diagnosis, DumpOptions, diagnose
from clusterctl.stacks.node_counters import read_counters
from tests.clusterctl.payload.local import LocalConnection, LocalTransport
from tests.clusterctl.stacks.ras_answers import Comm, as_json, as_text
from tests.clusterctl.stacks.ras_server import RasServer

NOTHING = {"addresses": [], "inner": {}, "gpus": None}


def comms(ranks: int = 4, behind: int | None = 2, base: int = 100) -> list[Comm]:
    counts = [{"AllReduce": base - (rank == behind)} for rank in range(ranks)]
    return [Comm(0x27A0, counts, [("10.0.0.1", 500 + rank) for rank in range(ranks)])]


def answer(server: RasServer, **more: float) -> tuple[RasAnswer | Unknown, dict[str, object]]:
    sent = ras.ask_ras([("127.0.0.1", server.port)], is_given=True, **more)  # type: ignore[arg-type]
    return read_counters({"ras": [sent], **NOTHING}).ras[0], sent


def test_json_of_a_new_nccl_comes_home() -> None:
    with RasServer(as_json(comms())) as server:
        found, _ = answer(server)
    assert isinstance(found, RasAnswer)
    assert (found.version, found.is_complete, len(found.comms)) == ("2.28.9", True, 1)
    assert [rank.counts["AllReduce"] for rank in found.comms[0].ranks] == [100, 100, 99, 100]


def test_old_nccl_is_asked_for_its_text() -> None:
    with RasServer(as_text(comms(), 4), behaviour="old") as server:
        found, _ = answer(server)
    assert isinstance(found, RasAnswer)
    assert (found.version, found.is_complete) == ("2.26.2", False)
    assert [rank.counts["AllReduce"] for rank in found.comms[0].ranks] == [100, 100, 99, 100]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[int]]:
    """Four real processes that look like ranks and wait in one collective."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\ndef all_reduce():\n    print('up', flush=True)\n    sys.stdin.readline()\nall_reduce()\n"
    )
    (tmp_path / "sites.toml").write_text('[[site]]\nkind = "collective"\nfunction = "all_reduce"\n')
    run_id, children = f"ras-{os.getpid()}-{tmp_path.name}", []
    for rank in range(4):
        env = {"CLUSTERCTL_RUN": run_id, "RANK": str(rank), "WORLD_SIZE": "4", "PATH": "/usr/bin:/bin"}  # fmt: skip
        child = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)  # fmt: skip
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
    yield [child.pid for child in children]
    for child in children:
        child.kill()
        child.communicate()


def look(tmp_path: Path, port: int) -> Diagnosis:
    from clusterctl.stacks.wait_sites import Sites, read_sites

    node = Node("here", host="127.0.0.1")
    transport = LocalTransport({"here": LocalConnection()})
    pick = Pick((f"ras-{os.getpid()}-{tmp_path.name}",))
    options = DumpOptions(interval_s=0.3, limit_s=20.0, ras=("127.0.0.1", port))
    sites = Sites(read_sites(tmp_path / "sites.toml"))
    return diagnose(Cluster([node], transport), pick, options, sites=sites)


def test_rank_that_never_launched_is_named_where_all_stacks_agree(
    tmp_path: Path, ranks: list[int]
) -> None:
    one = comms()[0]
    one.places = [("127.0.0.1", pid) for pid in ranks]
    with RasServer(as_json([one])) as server:
        verdict = look(tmp_path, server.port).verdict
        assert server.asked == 2
    assert (verdict.kind, [s.rank for s in verdict.suspects]) == ("hang", [2])
    assert "rank 2 (here) never launched AllReduce number 100 of communicator 0x27a0 (4 ranks)" in verdict.sentence  # fmt: skip
