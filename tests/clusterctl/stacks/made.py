"""Reports of nodes as the payload would send them, made up for the rules and the screen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from clusterctl.nodes import Node
from clusterctl.payload.dump.frames import Table
from clusterctl.remote.fanout import NodeResult
from clusterctl.stacks.model import JobSnapshot
from clusterctl.stacks.snapshot import read_snapshot
from clusterctl.stacks.wait_sites import Sites
from clusterctl.transport.base import Unreachable

LIB = "/opt/env/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"

# Frames as py-spy gives them, innermost first: (function, file, short file, line).
ALL_REDUCE = [
    ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", "torch/distributed/distributed_c10d.py", 3252),
    ("wrapper", f"{TORCH}/distributed/c10d_logger.py", "torch/distributed/c10d_logger.py", 83),
    ("all_reduce_mean", "/home/me/job/utils.py", "utils.py", 9),
    ("main", "/home/me/job/train.py", "train.py", 318),
    ("<module>", "/home/me/job/train.py", "train.py", 500),
]  # fmt: skip
BARRIER = [
    ("barrier", f"{TORCH}/distributed/distributed_c10d.py", "torch/distributed/distributed_c10d.py", 5349),
    ("main", "/home/me/job/train.py", "train.py", 325),
]  # fmt: skip
WAIT_DATA = [
    ("select", f"{LIB}/selectors.py", "selectors.py", 415),
    ("poll", f"{LIB}/multiprocessing/connection.py", "multiprocessing/connection.py", 257),
    ("_try_get_data", f"{TORCH}/utils/data/dataloader.py", "torch/utils/data/dataloader.py", 1284),
    ("_next_data", f"{TORCH}/utils/data/dataloader.py", "torch/utils/data/dataloader.py", 1447),
    ("main", "/home/me/job/train.py", "train.py", 300),
]
IDLE = [
    ("poll", f"{LIB}/multiprocessing/connection.py", "multiprocessing/connection.py", 257),
    ("Queue.get", f"{LIB}/multiprocessing/queues.py", "multiprocessing/queues.py", 113),
    ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", "torch/utils/data/_utils/worker.py", 275),
    ("BaseProcess.run", f"{LIB}/multiprocessing/process.py", "multiprocessing/process.py", 108),
    ("BaseProcess._bootstrap", f"{LIB}/multiprocessing/process.py", "multiprocessing/process.py", 314),
    ("Popen._launch", f"{LIB}/multiprocessing/popen_fork.py", "multiprocessing/popen_fork.py", 71),
    ("main", "/home/me/job/train.py", "train.py", 300),
]  # fmt: skip
READ = [
    ("_read_from_stream", "/home/me/job/read_video.py", "read_video.py", 210),
    ("read_video", "/home/me/job/read_video.py", "read_video.py", 240),
    ("VideoDataset.__getitem__", "/home/me/job/datasets.py", "datasets.py", 88),
    ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", "torch/utils/data/_utils/fetch.py", 54),
    *IDLE[2:],
]
FORWARD = [("forward", "/home/me/job/model.py", "model.py", 40), ("main", "/home/me/job/train.py", "train.py", 310)]  # fmt: skip
BACKWARD = [
    ("_engine_run_backward", f"{TORCH}/autograd/graph.py", "torch/autograd/graph.py", 979),
    ("backward", f"{TORCH}/autograd/__init__.py", "torch/autograd/__init__.py", 395),
    ("Tensor.backward", f"{TORCH}/_tensor.py", "torch/_tensor.py", 623),
    ("main", "/home/me/job/train.py", "train.py", 314),
]  # fmt: skip
ITEM = [("main", "/home/me/job/train.py", "train.py", 333)]
FEEDER = [
    ("Condition.wait", f"{LIB}/threading.py", "threading.py", 327),
    ("Queue._feed", f"{LIB}/multiprocessing/queues.py", "multiprocessing/queues.py", 231),
    ("Thread.run", f"{LIB}/threading.py", "threading.py", 982),
    ("Thread._bootstrap", f"{LIB}/threading.py", "threading.py", 1002),
]


class Made:
    """One node's report."""

    def __init__(self, name: str, samples: int = 2, interval_s: float = 2.0) -> None:
        self.name, self.interval_s = name, interval_s
        self.table, self.rows = Table(), []
        self.samples: list[dict[str, Any]] = [{"processes": {}} for _ in range(samples)]
        self.more: dict[str, Any] = {}
        self.pids = itertools.count(1000)

    def add(
        self, role: str, rank: int | None, *stacks: list[Any], index: int | None = None, ppid: int = 1,
        state: str = "S", ticks: int = 0, switches: int = 0, world: int | None = None, wchan: str | None = None,
        beats: tuple[dict[str, Any] | None, ...] = (), error: str = "", clip: Any = None,
        threads: int = 2, gil: bool = False, beside: Sequence[tuple[str, int, list[Any]]] = (),
    ) -> int:  # fmt: skip
        """A process; of fewer stacks than samples the last one repeats. Returns its pid.

        `beside` are threads of C++: the kernel's name, ticks from look to look, a Python stack or none.
        """
        pid = next(self.pids)
        self.rows.append(
            {"pid": pid, "ppid": ppid, "start": 1, "state": state, "user": "me", "command": "python",
             "program": "python train.py", "role": role, "index": index, "rank": rank, "world": world,
             "run": None, "node": None, "run_dir": None, "age_s": 100.0}
        )  # fmt: skip
        for number, sample in enumerate(self.samples):
            look: dict[str, Any] = {
                "state": state, "wchan": wchan, "stack": None, "syscall": None, "at_s": number * self.interval_s,
                "tasks": {
                    str(pid): [state, ticks * number, switches * number, wchan, "python"],
                    **{str(pid + 200_000 + i): ["S", spent * number, 0, None, name] for i, (name, spent, _) in enumerate(beside)},
                },
                "how": "py-spy", "error": error, "repaired": False, "clip": clip,
                "beat": beats[min(number, len(beats) - 1)] if beats else None,
            }  # fmt: skip
            if stacks:
                frames = stacks[min(number, len(stacks) - 1)]
                names = [("MainThread", frames, pid)]
                names += [
                    ("QueueFeederThread", FEEDER, pid + 100_000 + i) for i in range(threads - 1)
                ]
                names += [
                    ("Dummy", chain, pid + 200_000 + i) for i, (*_, chain) in enumerate(beside)
                ]
                look["threads"] = self.table.add(
                    [
                        {"os_thread_id": tid, "thread_name": name, "active": False, "owns_gil": gil,
                         "frames": [{"name": f, "filename": p, "short_filename": s, "line": n} for f, p, s, n in chain]}
                        for name, chain, tid in names
                    ]
                )  # fmt: skip
            else:
                look["how"] = "kernel"
            sample["processes"][str(pid)] = look
        return pid

    def result(self) -> NodeResult[dict[str, Any]]:
        report = {
            "rows": self.rows, "samples": self.samples, "frames": self.table.frames,
            "stacks": self.table.stacks, "machine": self.name, "py_spy": "/x/py-spy", "rights": {},
            "flight": {}, "logs": {}, "open": {}, "source": {}, "kernel": [], "kernel_cut_s": None,
            "seconds": 1.0, "late": [], "others": 0,
            "counters": {"ras": [], "addresses": [], "inner": {}, "gpus": None},
            **self.more,
        }  # fmt: skip
        return NodeResult(Node(self.name), report, None, 1.0)


def silent(name: str) -> NodeResult[dict[str, Any]]:
    return NodeResult(Node(name), None, Unreachable("tcp", 3.0, "no route to host"), 3.0)


def snapshot(*nodes: Made | NodeResult[dict[str, Any]], sites: Sites | None = None) -> JobSnapshot:
    results = [node.result() if isinstance(node, Made) else node for node in nodes]
    return read_snapshot(results, sites or Sites(), interval_s=2.0, samples=2, seconds=4.1)


def cluster(
    nodes: int, ranks: int, loaders: int, stacks: dict[int, list[Any]] | None = None, **more: Any
) -> list[Made]:
    """`ranks` trainers on each node, all in all_reduce but those of `stacks`, with idle loaders."""
    made = []
    for number in range(nodes):
        node = Made(f"node-{number + 1:03d}")
        for local in range(ranks):
            rank = number * ranks + local
            own = (stacks or {}).get(rank, ALL_REDUCE)
            pid = node.add("trainer", rank, own, world=nodes * ranks, **more)
            for index in range(loaders):
                node.add("loader", rank, IDLE, index=index, ppid=pid)
        made.append(node)
    return made
