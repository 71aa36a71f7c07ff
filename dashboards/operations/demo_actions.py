"""What the demo's simulated cluster answers: stacks of a hang, logs, a preflight.

The stacks are made up; the verdict is of the rules of `dump-stacks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from checks.units import counted
from clusterctl.jobs.processes import NodeJob, Pick, Process
from clusterctl.nodes import Node, fold
from clusterctl.stacks.frames import Frame, Stack
from clusterctl.stacks.model import JobSnapshot, NodeView, Proc, Progress, Thread
from clusterctl.stacks.wait_sites import Sites
from clusterctl.transport.base import Unreachable
from dashboards.model import units
from dashboards.model.state import RunState
from dashboards.operations.actions import Actions, Ending, LogText
from dashboards.operations.background import Watch
from dashboards.simulation.cluster import STORY
from dashboards.simulation.faults import DEAD, DEAD_S
from dashboards.simulation.healthy import GPUS

if TYPE_CHECKING:
    from clusterctl.stacks.diagnose import Diagnosis

RUN_ID, USER, PROGRAM = "demo-7f3a", "ubuntu", "python -m trainer.train stage3"
LOADERS = 4
HUNG_RANK, HUNG_LOADER = 27, 2
CLIP = "/data/clips/part-0417/8f3ad1.mp4"
STEP_S = 0.05  # between the answers of two nodes
SILENT = [incident.node - 1 for incident in STORY if incident.kind == "node_dead"]  # places
UNREACHABLE = Unreachable(DEAD[0], DEAD_S, DEAD[1])
SIMULATED = "(the demo: this answer is simulated)"
KERNEL_LOG = """\
[    0.000000] Linux version 6.8.0-52-generic
[   14.221340] nvidia 0000:19:00.0: enabling device (0140 -> 0142)
[   31.772311] mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged
[812344.120031] NVRM: Xid (PCI:0000:4d:00): 62, pid=88124, name=python, clocks lowered
"""


def _stack(text: str) -> Stack:
    """A line is `function file line`, then `standard` for Python's own library."""
    rows = [line.split() for line in text.strip().splitlines()]
    return Stack(tuple(Frame(row[0], row[1], int(row[2]), "standard" in row) for row in rows))


_ALL_REDUCE = _stack("""
all_reduce torch/distributed/distributed_c10d.py 2810
mean_over_ranks trainer/engine/native.py 188
train_step trainer/loop.py 204
run trainer/loop.py 131
main trainer/train.py 96
""")
_WAIT_DATA = _stack("""
select selectors.py 415 standard
_try_get_data torch/utils/data/dataloader.py 1251
_next_data torch/utils/data/dataloader.py 1414
batches trainer/loop.py 178
run trainer/loop.py 131
main trainer/train.py 96
""")
_IDLE = _stack("""
poll multiprocessing/connection.py 257 standard
get multiprocessing/queues.py 113 standard
_worker_loop torch/utils/data/_utils/worker.py 275
""")
_DECODE = _stack("""
read av/container/input.pyx 173
decode_clip trainer/data/video/clip.py 88
__getitem__ trainer/data/loader/loader.py 141
fetch torch/utils/data/_utils/fetch.py 52
_worker_loop torch/utils/data/_utils/worker.py 349
""")


class DemoActions(Actions):
    """Answers after a moment, as nodes do."""

    def __init__(self, nodes: Sequence[str], *, clock: Callable[[], float] = time.time) -> None:
        self._nodes = list(nodes)
        self._clock = clock

    def _ask(self, nodes: Sequence[str], watch: Watch) -> list[str]:
        asked = list(nodes) or self._nodes
        for count in range(len(asked)):
            watch.say(f"{count}/{len(asked)} nodes")
            time.sleep(STEP_S)
        return asked

    def _is_silent(self, name: str) -> bool:
        return self._nodes.index(name) in SILENT

    def diagnose(self, run: RunState | None, nodes: Sequence[str], watch: Watch) -> Diagnosis:
        from clusterctl.stacks.diagnose import Diagnosis
        from clusterctl.stacks.judge import judge

        step = run.last.step + 1 if run is not None and run.last is not None else 1
        picture = demo_picture(self._nodes, self._ask(nodes, watch), self._clock(), step)
        verdict = judge(picture)
        verdict.sentence += f" {SIMULATED}"
        return Diagnosis(picture, verdict, [], [])

    def preflight(self, nodes: Sequence[str], watch: Watch) -> list[str]:
        self._ask(nodes, watch)
        silent, last = list(filter(self._is_silent, nodes)), nodes[-1]
        if silent:
            reason = f"no answer, phase {UNREACHABLE.phase}: {UNREACHABLE.message}"
            row = f"UNKNOWN  ssh.reachable  {fold(silent)}: {reason}"
            return [f"NO-GO: {len(silent)} unknown", "", row, "", SIMULATED]
        head = f"GO: 87 checks on {counted(len(nodes), 'node')}, 1 warn"
        row = f"WARN     gpu.power_limit  {last}: 650 W, the others 700 W"
        return [head, "", row, "", f"fix {last}: nvidia-smi -pl 700", "", SIMULATED]

    def find(self, directory: str | None, nodes: Sequence[str], watch: Watch) -> Ending:
        jobs = tuple(
            NodeJob(Node(name), unreachable=UNREACHABLE)
            if self._is_silent(name)
            else NodeJob(Node(name), tuple(map(_trainer, _ranks(self._nodes.index(name)))))
            for name in self._ask(nodes, watch)
        )
        return Ending(Pick(runs=(RUN_ID,), user=None), jobs)

    def end(self, ending: Ending, watch: Watch) -> tuple[str, list[str]]:
        self._ask(ending.nodes, watch)
        return "the demo has no processes: nothing was ended", []

    def rank_log(self, run: RunState, rank: int, watch: Watch) -> LogText:
        lines = [f"rank {rank}: NCCL version 2.26.2, 192 ranks, 24 nodes"]
        for one in run.recent[-200:]:
            stamp = time.strftime("%H:%M:%S", time.localtime(one.time_s))
            text = f"step {one.step} loss {one.loss:.4f} {units.duration(one.step_s)}  {one.bucket}"
            lines.append(f"{stamp} {text}")
            if rank == one.slowest_rank and (one.idle_share or 0) > 0.2:
                text = f"warning: this rank was {one.idle_share:.0%} slower than the mean"
                lines.append(f"{stamp} {text}")
        return LogText(f"{run.directory}/ranks/{rank}.log", "\n".join(lines) + "\n")

    def kernel_log(self, node: str, watch: Watch) -> LogText:
        self._ask([node] * 3, watch)
        return LogText(f"{node}: kernel", KERNEL_LOG)


def demo_picture(
    names: Sequence[str], asked: Sequence[str], now_s: float, step: int
) -> JobSnapshot:
    """All ranks wait in all_reduce for rank 27, which waits for a loader that reads one clip."""
    sites = Sites()
    views = []
    for place, name in enumerate(names):
        if name not in asked:
            continue
        if place in SILENT:
            views.append(NodeView(name, silent=UNREACHABLE.sentence()))
            continue
        view = NodeView(name, py_spy="/opt/env/bin/py-spy", seconds=4.0)
        for rank in _ranks(place):
            has_hung = rank == HUNG_RANK
            stack = _WAIT_DATA if has_hung else _ALL_REDUCE
            view.procs.append(_proc(name, rank, None, stack, sites, step))
            loaders = [_proc(name, rank, index, _IDLE, sites, step) for index in range(LOADERS)]
            if has_hung:
                hung = loaders[HUNG_LOADER] = _proc(name, rank, HUNG_LOADER, _DECODE, sites, step)
                hung.clip = {"path": CLIP, "age_s": 65.0}
            view.procs += loaders
        views.append(view)
    world = len(names) * GPUS if len(asked) == len(names) else None
    return JobSnapshot(views, world, (RUN_ID,), 2.0, 2, 4.1, now_s)


def _ranks(place: int) -> range:
    return range(place * GPUS, (place + 1) * GPUS)


def _pid(rank: int) -> int:
    return 88_000 + 16 * rank


def _proc(node: str, rank: int, index: int | None, stack: Stack, sites: Sites, step: int) -> Proc:
    """A rank's trainer, or its loader `index`."""
    is_trainer, kind = index is None, sites.kind(stack)
    role = "trainer" if is_trainer else "loader"
    pid, ppid = (_pid(rank), 1) if index is None else (_pid(rank) + 1 + index, _pid(rank))
    beat = {"step": step, "phase": "backward", "age_s": 64.0, "mono_s": 0.0}
    operation, caller = sites.call(stack)
    return Proc(
        *(node, pid, ppid, rank, role, index, USER, PROGRAM, "S", kind, stack, Progress.STUCK),
        cpu_share=0.0,
        seconds=2.0,
        how="py-spy",
        error="",
        threads=(Thread(pid, "MainThread", stack, kind, False),),
        beats=(beat, beat) if is_trainer else (),
        site_index=sites.match(stack),
        operation=operation,
        caller=caller,
    )


def _trainer(rank: int) -> Process:
    return Process(
        pid=_pid(rank),
        start=1,
        ppid=1,
        user=USER,
        state="S",
        command="python",
        program=PROGRAM,
        role="trainer",
        index=None,
        rank=rank,
        run=RUN_ID,
        node_tag=None,
        run_dir=None,
        age_s=12_000.0,
        gpu_bytes=75 << 30,
    )
