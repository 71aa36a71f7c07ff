"""Logs, flight records and kernels beside a verdict; a flight record is never executed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.payload.dump.flight_recorder import flight_dump, load_plain, newest
from clusterctl.stacks.clues import clues, compare, parse_counters, parse_watchdog, read_dump
from clusterctl.stacks.model import JobSnapshot, NodeView
from tests.clusterctl.stacks.made import cluster, snapshot
from tests.ports import free_port

CAPTURES = Path(__file__).parents[2] / "captures"
RECORD = """
import os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
dist.all_reduce(torch.ones(3))
if rank == 0:
    dist.all_reduce(torch.ones(5), async_op=True)  # rank 1 never joins
sys.stdout.buffer.write(_dump_fr_trace())
sys.stdout.flush()
os._exit(0)
"""


def test_watchdog_of_three_generations() -> None:
    lines = (CAPTURES / "nccl/watchdog-timeout.txt").read_text().splitlines()
    found = [(t.rank, t.sequence, t.operation, t.timeout_ms) for t in parse_watchdog(lines)]
    assert found == [
        (65, 1559, "_REDUCE_SCATTER_BASE", 1800000),
        (66, 1559, "_REDUCE_SCATTER_BASE", 1800000),
        (10, 15734, "ALLREDUCE", 600000),
        (1, 469508, "ALLREDUCE", 1800000),
    ]
    assert parse_counters(lines) == [("1", 15735, 15733)]


@pytest.mark.parametrize("text", ["", "Watchdog caught", "[Rank x] Watchdog caught collective operation timeout: WorkNCCL(", "\x00\xff"])  # fmt: skip
def test_odd_lines_are_passed_over(text: str) -> None:
    assert parse_watchdog([text]) == parse_counters([text]) == []


def entry(sequence: int, operation: str = "all_reduce", *, done: bool = True, line: int = 17) -> dict[str, Any]:  # fmt: skip
    return {
        "collective_seq_id": sequence, "profiling_name": f"nccl:{operation}", "is_p2p": False,
        "process_group": ("0", "default_pg"), "input_sizes": [[4]], "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled", "retired": done,
        "frames": [{"name": "step", "filename": "/job/train.py", "line": line}],
    }  # fmt: skip


def record(*entries: dict[str, Any]) -> dict[str, Any]:
    """As a node sends it."""
    data = pickle.dumps({"version": "2.10", "entries": list(entries)})
    return {"path": "/x", "age_s": 1.0, "entries": newest(load_plain(data))}


def test_rank_that_is_behind_is_named_with_what_it_missed() -> None:
    dumps = {rank: read_dump({"entries": [entry(1), entry(2, done=False)]}) for rank in range(3)}
    dumps[3] = read_dump({"entries": [entry(1, "barrier", line=9)]})
    ((text, ranks),) = compare(dumps, 4)
    assert ranks == [3]
    assert "rank 3 never joined number 2" in text
    assert "all_reduce at step train.py:17" in text
    assert "barrier at step train.py:9" in text


def test_another_collective_under_the_same_number_is_a_mismatch() -> None:
    dumps = {rank: read_dump({"entries": [entry(5, done=False)]}) for rank in (0, 1)}
    dumps[2] = read_dump({"entries": [entry(5, "broadcast", done=False, line=30)]})
    assert compare(dumps, 3)[0][1] == [2]


def test_all_joined_and_none_finished_points_at_the_network() -> None:
    dumps = {rank: read_dump({"entries": [entry(5, done=False)]}) for rank in (0, 1)}
    assert "network" in compare(dumps, 2)[0][0]
    assert compare({0: dumps[0]}, 2)[-1][1] == [1]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


def test_record_that_would_run_something_is_refused(tmp_path: Path) -> None:
    for data in (pickle.dumps({"entries": Evil(tmp_path / "ran")}), pickle.dumps(Evil(tmp_path / "ran"), 0), b"cos\nsystem\n(S'x'\ntR."):  # fmt: skip
        with pytest.raises(ValueError, match="not a flight record"):
            load_plain(data)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"{", b"garbage", pickle.dumps([1]), pickle.dumps({"entries": 3}), b"\x80\x04Nr\xff\xff\xff\x7f"],
)  # fmt: skip
def test_unreadable_records_are_said_to_be_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a flight record"):
        newest(load_plain(data))
    assert read_dump({"path": "/r", "error": "no flight record"}) == "/r: no flight record"


def folded(width: int, depth: int) -> Any:
    """Lists of the same list: small in a pickle, `width ** depth` values when written out."""
    value: Any = "x"
    for _ in range(depth):
        value = [value] * width
    return value


@pytest.mark.parametrize(
    "key", ["input_sizes", "process_group", "frames", "profiling_name", "state"]
)
def test_record_that_unfolds_into_a_million_values_is_refused(key: str) -> None:
    data = pickle.dumps({"entries": [{"collective_seq_id": 1, key: folded(10, 8)}]})
    assert len(data) < 500
    begun = time.process_time()
    if key == "frames":  # of those the first level is looked at
        assert len(json.dumps(newest(load_plain(data)))) < 1000
    else:
        with pytest.raises(ValueError, match="too long, or too deep"):
            newest(load_plain(data))
    assert time.process_time() - begun < 1.0


def test_key_that_takes_for_ever_to_hash_is_refused() -> None:
    pairs = b"K\x01\x94" + b"".join(b"h%c\x86\x94" % level for level in range(60))
    with pytest.raises(ValueError, match="a key that is no text"):
        load_plain(b"\x80\x04}" + pairs + b"K\x02s.")


@pytest.mark.slow
def test_record_of_too_many_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1048576 lists"):
        load_plain(b"\x80\x04(" + b"]" * ((1 << 20) + 1) + b"l.")


def test_group_with_long_entries_sends_fewer() -> None:
    entries = []
    for number in range(1, 65):
        frame = {"name": "f" * 250, "filename": "/job/" + "d" * 200, "line": 1}
        entries.append({**entry(number), "frames": [frame], "input_sizes": [[1] * 400]})
    sent = newest({"entries": entries})
    assert [row["collective_seq_id"] for row in sent] == list(range(49, 65))
    assert len(json.dumps(sent)) < 128 << 10


def test_sequence_numbers_of_a_record_are_not_counted_through() -> None:
    far = read_dump({"entries": [entry(1, done=False), entry(10**15, done=False)]})
    begun = time.process_time()
    compare({0: far, 1: far}, 2)
    assert time.process_time() - begun < 1.0


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (
        data,
        pickle.dumps({"entries": [entry(1)]}) + data,
        pickle.dumps(entry(1))[:-1] + data,
    ):
        try:
            newest(load_plain(text))
        except ValueError:
            pass


def test_a_node_sends_the_newest_entries_of_its_ranks(tmp_path: Path) -> None:
    variables = b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=%s/trace_\0" % os.fsencode(tmp_path)
    env = SimpleNamespace(environ=variables)
    assert flight_dump(env, 3) is None
    data = {"entries": [entry(number) for number in range(1, 200)]}
    (tmp_path / "trace_3").write_bytes(pickle.dumps(data))
    sent = flight_dump(env, 3)
    assert [row["collective_seq_id"] for row in sent["entries"]] == list(range(136, 200))
    assert max(read_dump(sent)["0 default_pg"]) == 199
    (tmp_path / "trace_3").write_bytes(b"cos\nsystem\n(S'x'\ntR.")
    assert "os.system" in flight_dump(env, 3)["error"]


def test_clues_stand_beside_the_verdict() -> None:
    made = cluster(2, 1, 0)
    made[0].more["flight"] = {"0": record(entry(1), entry(2, done=False))}
    made[1].more["flight"] = {"1": record(entry(1))}
    made[1].more["kernel"] = [
        [120.0, "[99.0] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"]
    ]
    pid = str(made[0].rows[0]["pid"])
    log = (CAPTURES / "nccl/watchdog-timeout.txt").read_text().splitlines()[:2]
    made[0].more["logs"] = {pid: log}
    texts = [clue.text for clue in clues(snapshot(*made))]
    assert "rank 1 never joined number 2" in texts[0]
    assert any(
        "_REDUCE_SCATTER_BASE number 1559 timed out after 30 min 00 s on rank 65-66" in t
        for t in texts
    )
    assert any("node-002: Xid 79 on 0000:44:00" in t and "2 min" in t for t in texts)


@pytest.mark.slow
def test_records_of_real_ranks_tell_who_is_behind(tmp_path: Path) -> None:
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, "-c", RECORD], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]  # fmt: skip
    dumps = {rank: read_dump({"entries": newest(load_plain(child.communicate(timeout=90)[0]))}) for rank, child in enumerate(ranks)}  # fmt: skip
    assert compare(dumps, 2)[0][1] == [1]


@pytest.mark.parametrize(
    "part",
    [
        "[PG  Rank 1]", "[PG a Rank 1] ", "[PG Rank 1] last enqueued work: ", "[Rank 1]", "gloo", "gloo Timed out waiting ",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=a, ", "NCCL WARN 1 ", "Received a dump signal ",
    ],
)  # fmt: skip
def test_report_of_one_node_takes_no_minutes(part: str) -> None:
    """6 MiB of it have 1,500 lines of 4,096 characters; 73 s were taken for them."""
    view = NodeView("n1", logs={0: [(part * 4096)[:4096]] * 300})
    began_s = time.process_time()
    clues(JobSnapshot([view], 1, (), 1.0, 2))
    assert time.process_time() - began_s < 2.0
