"""RAS answers as NCCL prints them: JSON from 2.28.7 on, text before, for made-up jobs.

The layout is that of rasOutAppend's calls in src/ras/client_support.cc: JSON as in 2.28.9, text as
in 2.26.2, where a communicator's counts are shown by operation. No GPU was at hand to record one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass
class Comm:
    """A communicator; `counts` of each of its ranks, `places` (host, pid) of each."""

    hash: int
    counts: list[Mapping[str, int]]
    places: list[tuple[str, int]]
    missing: frozenset[int] = frozenset()
    unresponsive: bool = True
    states: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def here(self) -> list[int]:
        return [rank for rank in range(len(self.counts)) if rank not in self.missing]


def as_json(comms: Iterable[Comm], version: str = "2.28.9", timeouts: int = 0) -> str:
    comms = list(comms)
    shown = []
    for comm in comms:
        ranks = [
            {
                "rank": rank, "host": comm.places[rank][0], "pid": comm.places[rank][1],
                "cuda_dev": rank % 8, "nvml_dev": rank % 8,
                "status": {"init_state": 0, "async_error": 0, "finalize_called": False,
                           "destroy_flag": False, "abort_flag": False, **comm.states.get(rank, {})},
                "collective_counts": {name: comm.counts[rank].get(name, 0) for name in OPERATIONS},
            }
            for rank in comm.here
        ]  # fmt: skip
        absent = [
            {
                "rank": rank, "host": comm.places[rank][0], "pid": comm.places[rank][1],
                "cuda_dev": rank % 8, "nvml_dev": rank % 8,
                "status": {"unresponsive": comm.unresponsive, "considered_dead": False},
            }
            for rank in sorted(comm.missing)
        ]  # fmt: skip
        shown.append(
            {"hash": f"0x{comm.hash:x}", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
             "size": len(comm.counts), "ranks_count": len(ranks), "missing_ranks_count": len(absent),
             "ranks": ranks, "missing_ranks": absent}
        )  # fmt: skip
    document = {
        "nccl_version": version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-01-19 13:06:53", "communicators_count": len(comms), "communicators": shown,
        "ras": {"collection_time_sec": 0.001, "timeouts_count": timeouts},
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def as_text(comms: Iterable[Comm], processes: int, version: str = "2.26.2") -> str:
    """VERBOSE STATUS. A group of ranks is listed where it is under half of the communicator."""
    comms = sorted(comms, key=lambda one: -len(one.counts))
    sizes = list(dict.fromkeys(len(comm.counts) for comm in comms))
    table, errors, warnings = [], [], []
    for group, size in enumerate(sizes):
        same = [comm for comm in comms if len(comm.counts) == size]
        words = {_word(comm) for comm in same}
        word = "OK" if words == {"OK"} else max(words - {"OK"})
        table.append(f"{group:5d}  {len(same):8d}  {1:8d}  {size:>8}  {size:8d}  {size:8d}  {'RUNNING':>8}  {word:>6}")  # fmt: skip
        for number, comm in enumerate(same):
            title = f"#{group}-{number} ({comm.hash:016x})"
            if comm.missing:
                errors += [f"{title} INCOMPLETE", f"  Missing communicator data from {len(comm.missing)} rank{'s' * (len(comm.missing) > 1)}"]  # fmt: skip
                errors += [f"  Rank {rank} -- {_process(comm, rank)}" for rank in sorted(comm.missing)]  # fmt: skip
                errors.append("")
            if "MISMATCH" in _word(comm):
                warnings += [f"{title} MISMATCH", *_mismatch(comm)]
    return "\n".join(
        [
            f"NCCL version {version} compiled with CUDA 12.6",
            "CUDA runtime version 12060, driver version 12080", "", "Job summary", "===========", "",
            "  Nodes  Processes         GPUs  Processes     GPUs",
            "(total)   per node  per process    (total)  (total)",
            f"{1:7d}  {processes:9d}  {1:11d}  {processes:9d}  {processes:7d}", "",
            "Communicators... (0.00s)", "=============", "",
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group", *table, "",
            "Errors", "======", "", *errors, "Warnings", "========", "", *warnings,
        ]
    ) + "\n"  # fmt: skip


def _word(comm: Comm) -> str:
    words = ["INCOMPLETE"] * bool(comm.missing)
    first = comm.counts[comm.here[0]]
    words += ["MISMATCH"] * any(comm.counts[rank] != first for rank in comm.here)
    return ",".join(words) or "OK"


def _process(comm: Comm, rank: int) -> str:
    host, pid = comm.places[rank]
    return f"GPU {rank % 8} managed by process {pid} on node {host}"


def _mismatch(comm: Comm) -> list[str]:
    lines = []
    for name in OPERATIONS:
        values = {rank: comm.counts[rank].get(name, 0) for rank in comm.here}
        if len(set(values.values())) < 2:
            continue
        lines.append(f"  Communicator ranks have different {name} operation counts")
        for value, count in sorted(Counter(values.values()).items(), key=lambda item: (-item[1], -item[0])):  # fmt: skip
            did = f"launched up to operation {value}" if value else "not launched any operations"
            ranks = [rank for rank in comm.here if values[rank] == value]
            if count > 1:
                lines.append(f"  {count} ranks have {did}")
            if count == 1:
                lines.append(f"  Rank {ranks[0]} has {did} -- {_process(comm, ranks[0])}")
            elif count < len(comm.counts) * 0.5:
                lines += [f"  Rank {rank} -- {_process(comm, rank)}" for rank in ranks]
        lines.append("")
    return lines
