"""Processes that hold a GPU: one row per process, its GPUs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks import units
from checks.facts import GpuProcess, Maybe, NodeFacts, Unknown, known, or_none
from clusterctl.nodes import grouped


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on GPUs; None where it could not be found out, `why` is the reason."""

    node: str
    gpus: tuple[str, ...]
    pid: int
    user: str | None
    age_s: float | None
    used_bytes: int | None  # on all its GPUs
    run: str | None  # of our launcher; None also for what is not ours
    rank: int | None
    command: str
    why: str | None

    def cells(self, with_run: bool) -> list[str]:
        tag = [self.run or "-", "-" if self.rank is None else str(self.rank)] if with_run else []
        return [
            self.node,
            ",".join(self.gpus),
            str(self.pid),
            self.user or "-",
            "-" if self.age_s is None else units.duration(self.age_s),
            "-" if self.used_bytes is None else units.size(self.used_bytes),
            *tag,
            self.command + ("  (not in /proc there)" if self.why else ""),
        ]


def columns(with_run: bool) -> list[str]:
    tag = ["RUN", "RANK"] if with_run else []
    return ["NODE", "GPU", "PID", "USER", "AGE", "MEM", *tag, "COMMAND"]


def list_processes(nodes: Sequence[NodeFacts]) -> list[ProcessRow]:
    """In the nodes' order, then by GPU; nodes whose processes are unknown have no row."""
    rows = []
    for node in nodes:
        numbers = {gpu.uuid: gpu.label(at) for at, gpu in enumerate(node.gpus.gpus)}
        by_pid = grouped((one.pid, one) for one in or_none(node.gpus.processes) or ())
        rows += [_row(node.name, members, numbers) for members in by_pid.values()]
    return rows


def _row(node: str, members: Sequence[GpuProcess], numbers: dict[Maybe[str], str]) -> ProcessRow:
    first, used = members[0], known(one.used_bytes for one in members)
    return ProcessRow(
        node=node,
        gpus=tuple(dict.fromkeys(numbers.get(one.gpu_uuid, "?") for one in members)),
        pid=first.pid,
        user=or_none(first.user),
        age_s=or_none(first.age_s),
        used_bytes=sum(used) if used else None,
        run=or_none(first.run),
        rank=or_none(first.rank),
        command=or_none(first.command) or first.name,
        why=first.user.reason if isinstance(first.user, Unknown) else None,
    )
