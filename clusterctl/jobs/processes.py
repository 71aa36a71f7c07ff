"""The processes of a job on the nodes: what kill, stop and dump-stacks work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.nodes import Node, counted, fold, is_loopback
from clusterctl.remote.fanout import NodeResult, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.settings import Settings
from clusterctl.transport.base import Transport, Unreachable

DEFAULT_MATCH = r"python.*train\.py"  # what the seeds' kill_process.sh looked for
ROLES = (
    "launcher",
    "trainer",
    "loader",
    "probe",
    "decode",
    "forkserver",
    "tracker",
    "logger",
    "compiler",
    "shell",
    "helper",
)


@dataclass(frozen=True, slots=True)
class Pick:
    """Which processes are meant; payload/jobs/job_processes.py explains the keys."""

    runs: tuple[str, ...] = ()  # empty: every run with our tag
    match: str | None = None
    gpus: bool = False
    user: str | None = ""  # "": who logs in; None: anybody's

    def to_args(self, node: Node) -> dict[str, Any]:
        return {
            "runs": list(self.runs),
            "match": self.match,
            "gpus": self.gpus,
            "user": self.user,
            # Two loopback nodes see each other's processes. Elsewhere a renamed node is still
            # found.
            "node": node.name if is_loopback(node) else None,
        }

    def words(self) -> str:
        """`run X`, `command lines that match /…/`: for messages."""
        if self.match is not None:
            return f"a command line that matches {self.match!r}"
        if self.gpus:
            return "a process on a GPU"
        return f"run {', '.join(self.runs)}" if self.runs else "a run of clusterctl launch"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job."""

    pid: int
    start: int  # clock ticks since boot: with pid, an identity
    ppid: int
    user: str
    state: str
    command: str
    program: str
    role: str
    index: int | None
    rank: int | None
    run: str | None
    node_tag: str | None
    run_dir: str | None
    age_s: float
    gpu_bytes: int | None
    raw: dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @property
    def label(self) -> str:
        """`rank 3 loader 7`, `launcher`."""
        words = [] if self.rank is None else [f"rank {self.rank}"]
        return " ".join([*words, self.role, *([] if self.index is None else [str(self.index)])])


@dataclass(frozen=True, slots=True)
class NodeJob:
    """What one node has of it; `unreachable` says why nothing is known."""

    node: Node
    processes: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()  # fit the pick, but belong to somebody else
    unreachable: Unreachable | None = None
    notes: tuple[str, ...] = ()  # what a user has to know of how it was found


def look(
    pick: Pick,
    settings: Settings,
    transport: Transport,
    *,
    verb: str = "kill",
    sudo: bool = False,
    sweep: Callable[[Any, int], Iterable[NodeResult[dict[str, Any]]]] | None = None,
) -> tuple[list[NodeJob], list[NodeResult[dict[str, Any]]]]:
    """The job on every node, in the hostfile's order; touches nothing."""
    nodes = settings.nodes()
    fanout = ask(
        nodes,
        transport,
        verb,
        lambda node: {"op": "look", "pick": pick.to_args(node)},
        limits=settings.limits,
        width=settings.width,
        sudo=sudo,
    )
    results = in_order(nodes, list(sweep(fanout, len(nodes)) if sweep else fanout))
    return read_jobs(results), results


def read_jobs(results: Sequence[NodeResult[dict[str, Any]]]) -> list[NodeJob]:
    """Answers as jobs. A process that two names of one machine report belongs to one of them."""
    jobs = []
    taken: set[tuple[str, int, int]] = set()
    for result in results:
        if result.value is None:
            jobs.append(NodeJob(result.node, unreachable=result.unreachable))
            continue
        machine = str(result.value.get("machine"))
        rows = [read_process(row) for row in result.value["rows"]]
        names = {other.node.name for other in results}
        mine = []
        for row in rows:
            key = (machine, row.pid, row.start)
            elsewhere = row.node_tag in names - {result.node.name} and is_loopback(result.node)
            if key not in taken and not elsewhere:
                taken.add(key)
                mine.append(row)
        others = tuple(read_process(row) for row in result.value["others"])
        notes = tuple(result.value.get("notes", ()))
        jobs.append(NodeJob(result.node, tuple(mine), others, notes=notes))
    return jobs


def read_process(row: dict[str, Any]) -> Process:
    """A row of payload `describe_job`."""
    return Process(
        pid=row["pid"],
        start=row["start"],
        ppid=row["ppid"],
        user=row["user"],
        state=row["state"],
        command=row["command"],
        program=row["program"],
        role=row["role"],
        index=row["index"],
        rank=row["rank"],
        run=row["run"],
        node_tag=row.get("node"),
        run_dir=row.get("run_dir"),
        age_s=row["age_s"],
        gpu_bytes=row.get("gpu_bytes"),
        raw=row,
    )


def one_run(jobs: Sequence[NodeJob], pick: Pick, *, every: bool) -> None:
    """Refuse to guess between two runs. Raises `UsageError` that lists them."""
    if every or pick.runs or pick.match is not None or pick.gpus:
        return
    runs: dict[str, list[str]] = {}
    for job in jobs:
        for run in dict.fromkeys(p.run for p in job.processes if p.run):
            runs.setdefault(run, []).append(job.node.name)
    if len(runs) > 1:
        lines = "; ".join(f"{run} on {fold(names)}" for run, names in runs.items())
        raise UsageError(
            f"found {len(runs)} runs: {lines}", hint="name one: --run ID, or --all-runs"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Nodes with the same share of a job, for the plan."""

    nodes: str
    count: int  # processes on each of them
    ranks: str
    owners: str
    what: str
    gpu_bytes: int | None
    oldest_s: float


def plan_rows(jobs: Sequence[NodeJob]) -> list[Row]:
    """Nodes that look alike together, in the order of the first."""
    groups: dict[tuple[object, ...], list[NodeJob]] = {}
    for job in jobs:
        if job.processes:
            roles = Counter(process.role for process in job.processes)
            owners = tuple(sorted({process.user for process in job.processes}))
            known = [p.gpu_bytes for p in job.processes if p.gpu_bytes is not None]
            gpu = round(sum(known) / (1 << 30)) if known else None
            key = (tuple(sorted(roles.items())), owners, gpu)
            groups.setdefault(key, []).append(job)
    return [_row(members) for members in groups.values()]


def _row(members: Sequence[NodeJob]) -> Row:
    processes = members[0].processes
    roles = Counter(process.role for process in processes)
    words = [
        f"{roles[role]} {role}"
        for role in (*ROLES, *sorted(set(roles) - set(ROLES)))
        if roles[role]
    ]
    everything = [process for job in members for process in job.processes]
    known = [p.gpu_bytes for p in processes if p.gpu_bytes is not None]
    return Row(
        nodes=fold([job.node.name for job in members]),
        count=len(processes),
        ranks=fold_ranks(p.rank for p in everything if p.rank is not None and p.role == "trainer"),
        owners=",".join(sorted({process.user for process in processes})),
        what=", ".join(words),
        gpu_bytes=sum(known) if known else None,
        oldest_s=max(process.age_s for process in everything),
    )


def fold_ranks(ranks: Iterable[int]) -> str:
    """0-3,7 of 0, 1, 2, 3, 7."""
    return ",".join(
        str(low) if low == high else f"{low}-{high}" for low, high in _ranges(sorted(set(ranks)))
    )


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = None
    for number in numbers:
        if start is None or previous is None:
            start = number
        elif number != previous + 1:
            yield start, previous
            start = number
        previous = number
    if start is not None and previous is not None:
        yield start, previous


def others_lines(jobs: Sequence[NodeJob]) -> list[str]:
    """What is left alone because it is somebody else's."""
    owners: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for job in jobs:
        for process in job.others:
            names = owners.setdefault(process.user, [])
            if job.node.name not in names:
                names.append(job.node.name)
            counts[process.user] += 1
    return [
        f"left alone: {counted(counts[user], 'process')} of {user} on {fold(names)} "
        f"(--user {user} is for them)"
        for user, names in owners.items()
    ]
