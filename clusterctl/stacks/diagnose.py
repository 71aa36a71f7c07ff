"""Collect stacks from every node, one ssh each, and judge them."""

from __future__ import annotations

import base64
import functools
import platform
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult, in_order
from clusterctl.remote.messages.stacks import read_report
from clusterctl.remote.payload import PayloadStream
from clusterctl.stacks.clues import Clue, clues
from clusterctl.stacks.counts.rules_counts import explain
from clusterctl.stacks.files import write_folder
from clusterctl.stacks.judge import judge
from clusterctl.stacks.model import JobSnapshot
from clusterctl.stacks.snapshot import read_snapshot
from clusterctl.stacks.verdict import Verdict
from clusterctl.stacks.wait_sites import Sites

Results = Iterable[NodeResult[dict[str, Any]]]

# Of one node's report; 136 processes are under 1 MB, with 100 samples under 3.
REPORT_BYTES = 6 << 20
NATIVE_S = 20.0  # one --native dump of a torch process takes 7 s, for which it is stopped


@dataclass(frozen=True, slots=True)
class DumpOptions:
    samples: int = 2
    interval_s: float = 2.0
    limit_s: float = 5.0  # one py-spy dump: 0.02 to 0.2 s where nodes are not overloaded
    width: int = 0  # dumps at a time on one node; 0: half its cores, 2 to 8
    py_spy: str | None = None  # path on the nodes
    blocking: bool = False
    sudo: bool = False
    # Where NCCL's RAS listens on the nodes: (host, port), None not to ask, () for the job's own
    ras: tuple[str, int] | tuple[()] | None = ()


def inflate(packed: str) -> bytes:
    """The text of a packed report. Raises `TransportError("parse")`, also when it is too long."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(base64.b64decode(packed), REPORT_BYTES)
    except (zlib.error, ValueError) as error:
        raise TransportError("parse", f"cannot unpack the report of stacks: {error}") from None
    if not inflater.eof:
        why = f"longer than {units.size(REPORT_BYTES)}" if len(text) == REPORT_BYTES else "cut off"
        raise TransportError("parse", f"the report of stacks is {why}")
    return text


_packing = threading.Lock()


@functools.cache
def _packed_py_spy() -> str | None:
    """The head's own py-spy, for a node that has none; None without one."""
    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.is_file() else shutil.which("py-spy")
    return path and base64.b64encode(zlib.compress(Path(path).read_bytes(), 6)).decode()


def _py_spy_for(machine: str) -> dict[str, Any]:
    with _packing:  # once, also when many nodes need it at the same time
        data = _packed_py_spy() if machine == platform.machine() else None
    return {"op": "py-spy", "data": data} if data else {"op": "go"}


def collect(cluster: Cluster, pick: Pick, options: DumpOptions) -> Results:
    """The unpacked reports of payload stacks.py, as they arrive."""
    budget_s = cluster.limits.command_s + (options.samples - 1) * options.interval_s

    def args(node: Node) -> dict[str, Any]:
        return {**asdict(options), "pick": pick.to_args(node), "budget_s": budget_s}

    return _ask(cluster, args, budget_s + 10.0, options.sudo)


def collect_native(
    cluster: Cluster,
    pids: Mapping[Node, Sequence[int]],
    py_spy: Mapping[Node, str | None],
    *,
    given: str | None = None,
    sudo: bool,
) -> Results:
    """Native stacks of a few processes, each stopped for seconds; `given` is the user's py-spy."""

    def args(node: Node) -> dict[str, Any]:
        found = {"pids": list(pids[node]), "py_spy": py_spy[node], "given": given}
        return {"op": "native", "limit_s": NATIVE_S, **found}

    limit_s = max((len(found) for found in pids.values()), default=0) * NATIVE_S + 5.0
    return _ask(replace(cluster, nodes=list(pids)), args, limit_s, sudo)


def _ask(
    cluster: Cluster, args: Callable[[Node], dict[str, Any]], limit_s: float, sudo: bool
) -> Results:
    """Sends py-spy to a payload that asks for it; its report is the node's value."""

    def talk(stream: PayloadStream, _connect_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while message := stream.receive(max(0.0, deadline - time.monotonic())):
            if message["type"] == "found":
                stream.send(_py_spy_for(message["machine"]))
            elif message["type"] == "report":
                return read_report(inflate(message["packed"]))
        raise TransportError("command", f"no stacks in {units.duration(limit_s)}")

    return cluster.converse("stacks", args, talk, timeout_s=limit_s, sudo=sudo)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    snapshot: JobSnapshot
    verdict: Verdict
    clues: list[Clue]
    results: list[NodeResult[dict[str, Any]]]

    def write(self, folder: Path) -> None:
        """All stacks, report.json and index.html. Raises OSError."""
        write_folder(folder, self.snapshot, self.verdict, self.clues, {})


def diagnose(
    cluster: Cluster,
    pick: Pick,
    options: DumpOptions | None = None,
    *,
    sites: Sites | None = None,
    is_part: bool = False,
) -> Diagnosis:
    """Stacks of a job on all nodes, judged. Never raises for what happens on nodes.

    `is_part` says that the user left nodes out. Takes the interval between samples and some
    seconds; at most the command limit, the intervals and the connection limits together.
    """
    options = options or DumpOptions()
    started = time.monotonic()
    results = in_order(cluster.nodes, collect(cluster, pick, options))
    about: dict[str, Any] = {"interval_s": options.interval_s, "samples": options.samples}
    about |= {"seconds": time.monotonic() - started, "taken_s": time.time()}
    snapshot = read_snapshot(results, sites or Sites(), is_part=is_part, **about)
    verdict = explain(judge(snapshot), snapshot)
    return Diagnosis(snapshot, verdict, clues(snapshot), results)
