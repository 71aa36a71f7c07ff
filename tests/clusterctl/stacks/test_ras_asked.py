"""The payload and a real server of RAS's protocol: what comes home, how late, and at what cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from checks.facts import RasAnswer, Unknown
from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.payload.dump import ras
from clusterctl.payload.dump.counters import Counters
from clusterctl.remote.cluster import Cluster
from clusterctl.stacks.counts.gpu_use import read_use
from clusterctl.stacks.diagnose import Diagnosis, DumpOptions, diagnose
from clusterctl.stacks.node_counters import read_counters
from clusterctl.stacks.wait_sites import Sites, read_sites
from tests.captures import nvml_library
from tests.clusterctl.payload.local import LocalConnection, LocalTransport
from tests.clusterctl.stacks.ras_answers import Comm, as_json, as_text
from tests.clusterctl.stacks.ras_server import RasServer
from tests.ports import free_port

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


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("dead", "accepts connections and does not answer"),
        ("half a line", "accepts connections and does not answer"),
        ("endless line", "it is no NCCL RAS"),
        ("slow", "accepts connections and does not answer"),
        ("flood", "longer than what is kept"),
        ("cut", "cannot be read"),
    ],
)
def test_server_at_fault_is_bounded_in_time_and_bytes(behaviour: str, why: str) -> None:
    begun = time.monotonic()
    with RasServer(as_json(comms()), behaviour=behaviour) as server:
        found, sent = answer(server, limit_s=1.5)
    assert isinstance(found, Unknown)
    assert why in found.reason
    assert time.monotonic() - begun < 5
    assert len(json.dumps(sent)) < 8 << 20


def test_stopped_process_behind_a_shared_port_is_passed_over() -> None:
    """SO_REUSEPORT: the kernel chooses one of the listening processes for each connection."""
    with RasServer(as_json(comms()), behaviour="dead once") as server:
        found, sent = answer(server)
    assert isinstance(found, RasAnswer)
    assert 1.0 <= float(str(sent["seconds"])) < 3.0


def test_refused_connection_costs_nothing() -> None:
    begun, spent = time.monotonic(), time.process_time()
    sent = ras.ask_ras([("127.0.0.1", free_port()), ("::1", free_port())])
    assert sent["error"].endswith("nothing listens there")
    assert time.monotonic() - begun < 0.5
    assert time.process_time() - spent < 0.05


def test_job_may_not_send_the_payload_to_another_machine() -> None:
    sent = ras.ask_ras([("192.0.2.1", 28028)])
    assert sent["error"].endswith("nothing listens there")
    assert sent["seconds"] < 0.5


@pytest.mark.parametrize(
    ("value", "places"),
    [
        (None, [("127.0.0.1", 28028), ("::1", 28028)]),
        ("localhost:9", [("127.0.0.1", 9), ("::1", 9)]),
        ("10.1.2.3:77", [("10.1.2.3", 77)]),
        ("[fd00::1]:77", [("fd00::1", 77)]),
        ("nonsense", [("127.0.0.1", 28028), ("::1", 28028)]),
        ("host:99999", [("127.0.0.1", 28028), ("::1", 28028)]),
    ],
)
def test_address_is_that_of_the_job(value: str | None, places: list[tuple[str, int]]) -> None:
    environ = b"" if value is None else f"NCCL_RAS_ADDR={value}".encode()
    assert ras.ras_places([SimpleNamespace(environ=environ)]) == places
    assert ras.ras_places([SimpleNamespace(environ=environ)], ["h", 1]) == [("h", 1)]


def test_one_answer_costs_a_node_little_cpu() -> None:
    """192 ranks in three communicators of JSON, twice: half of the 0.05 s that a node may take."""
    places = [(f"10.0.0.{rank // 8}", 500 + rank) for rank in range(192)]
    text = as_json(Comm(n, [{"AllReduce": 7}] * 192, places) for n in range(3))
    assert len(text) > 250_000
    with serving(text) as port:
        spent = []
        for _ in range(5):
            begun = time.process_time()
            sent = [ras.ask_ras([("127.0.0.1", port)], is_given=True) for _ in range(2)]
            spent.append(time.process_time() - begun)
            assert all("text" in one for one in sent)
    print(f"two answers of {len(text)} bytes: {min(spent):.4f} s of CPU, {len(sent[0]['text'])} bytes home")  # fmt: skip
    assert min(spent) < 0.05


@contextmanager
def serving(text: str, *behaviour: str) -> Iterator[int]:
    """A server in a process of its own, so that its CPU time is not ours."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "answers"
        file.write_text(text)
        words = ["-m", "tests.clusterctl.stacks.ras_server", "0", str(file), *behaviour]
        child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            yield int(child.stdout.readline())
        finally:
            child.kill()
            child.communicate()


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


def look(tmp_path: Path, port: int, **env: str) -> Diagnosis:
    node = Node("here", host="127.0.0.1")
    transport = LocalTransport({"here": LocalConnection(env)})
    pick = Pick((f"ras-{os.getpid()}-{tmp_path.name}",))
    options = DumpOptions(interval_s=0.3, limit_s=20.0, ras=("127.0.0.1", port))
    sites = Sites(read_sites(tmp_path / "sites.toml"))
    return diagnose(Cluster([node], transport), pick, options, sites=sites)


@pytest.mark.long
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


@pytest.mark.long
def test_gpus_are_read_beside_the_stacks(tmp_path: Path, ranks: list[int]) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    nvml_library.build(folder, pid=ranks[3])
    found = look(tmp_path, free_port(), LD_LIBRARY_PATH=str(folder))
    use = read_use(found.snapshot)
    assert [(one.rank, one.use, one.words) for one in use.ranks] == [(3, "computes", "97 % at 690 of 700 W")]  # fmt: skip
    assert "NCCL RAS answers on no node" in found.verdict.sentence


@pytest.mark.long
def test_dead_ras_holds_up_the_stacks_for_a_bounded_time(tmp_path: Path, ranks: list[int]) -> None:
    begun = time.monotonic()
    with RasServer("", behaviour="dead") as server:
        verdict = look(tmp_path, server.port).verdict
    assert "accepts connections and does not answer" in verdict.sentence
    assert time.monotonic() - begun < 10


def test_job_that_switched_ras_off_is_not_asked(tmp_path: Path) -> None:
    """Neither is a node without a rank."""
    row = {"pid": 1, "role": "trainer"}
    shot = SimpleNamespace(seen={1: SimpleNamespace(environ=b"NCCL_RAS_ENABLE=0")})
    counters = Counters([row], shot, [], 0.1, 10.0)
    counters.look()
    assert [one["error"] for one in counters.report()["ras"]] == ["NCCL_RAS_ENABLE=0 switches it off"]  # fmt: skip
    nobody = Counters([], shot, [], 0.1, 10.0)
    nobody.look()
    assert nobody.report() == {"ras": [], "addresses": [], "inner": {}, "gpus": None}
