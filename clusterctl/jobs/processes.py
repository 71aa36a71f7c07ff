"""The processes of a job on the nodes: what kill, stop and dump-stacks work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from typing import Any

from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.nodes import Node, fold, grouped, is_loopback
from clusterctl.remote.cluster import Answers, Cluster
from clusterctl.runs.waiting import Waiting
from clusterctl.transport.base import Unreachable

DEFAULT_MATCH = r"python.*train\.py"  # of the seeds' kill_process.sh
# In the order in which a plan names them.
ROLES = ["launcher", "trainer", "loader", "probe", "decode", "forkserver"]
ROLES += ["tracker", "logger", "compiler", "shell", "helper"]


@dataclass(frozen=True, slots=True)
class Pick:
    """Which processes to find; payload/jobs/find_job.py explains the keys."""

    runs: tuple[str, ...] = ()  # empty: every run with our tag
    match: str | None = None
    gpus: bool = False
    user: str | None = ""  # "": who logs in; None: any user

    def to_args(self, node: Node) -> dict[str, Any]:
        # Only of loopback nodes, which see each other's processes: others may be renamed.
        return {**asdict(self), "node": node.name if is_loopback(node) else None}

    def words(self) -> str:
        """`run X`, `command lines that match /…/`: for messages."""
        if self.match is not None:
            return f"a command line that matches {self.match!r}"
        if self.gpus:
            return "a process on a GPU"
        return f"run {', '.join(self.runs)}" if self.runs else "a run of clusterctl launch"


def label(rank: int | None, role: str, index: int | None) -> str:
    """`rank 3 loader 7`, `launcher`."""
    first, last = "" if rank is None else f"rank {rank} ", "" if index is None else f" {index}"
    return f"{first}{role}{last}"


@dataclass(frozen=True, slots=True)
class Process:
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

    @classmethod
    def of(cls, row: dict[str, Any]) -> Process:
        """Of a row of payload `describe_job`."""
        known: dict[str, Any] = {one.name: row.get(one.name) for one in fields(cls)}
        return cls(**{**known, "node_tag": row.get("node"), "raw": row})

    @property
    def label(self) -> str:
        return label(self.rank, self.role, self.index)


@dataclass(frozen=True, slots=True)
class NodeJob:
    """The job's processes on one node; `unreachable` is the reason when nothing is known."""

    node: Node
    processes: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()  # fit the pick, but belong to another user
    unreachable: Unreachable | None = None
    waiting: tuple[dict[str, Any], ...] = ()  # runs between two attempts, as this node knows them
    notes: tuple[str, ...] = ()  # what a user has to know of how it was found


def look(
    pick: Pick, cluster: Cluster, *, verb: str = "kill", sudo: bool = False
) -> tuple[list[NodeJob], Answers]:
    """The job on every node, in the hostfile's order; touches nothing."""
    results = cluster.ask(verb, lambda node: {"op": "look", "pick": pick.to_args(node)}, sudo=sudo)
    return read_jobs(results), results


def read_jobs(results: Answers) -> list[NodeJob]:
    """Answers as jobs. A process that two names of one machine report belongs to one of them."""
    jobs = []
    taken: set[tuple[str, int, int]] = set()
    names = {result.node.name for result in results}
    for result in results:
        node, answer = result.node, result.value
        if answer is None:
            jobs.append(NodeJob(node, unreachable=result.unreachable))
            continue
        mine = []
        for process in map(Process.of, answer["rows"]):
            key = (str(answer.get("machine")), process.pid, process.start)
            elsewhere = process.node_tag in names - {node.name} and is_loopback(node)
            if key not in taken and not elsewhere:
                taken.add(key)
                mine.append(process)
        others = tuple(map(Process.of, answer["others"]))
        notes = tuple(answer.get("notes", ()))
        waiting = tuple(answer.get("waiting", ()))
        jobs.append(NodeJob(node, tuple(mine), others, waiting=waiting, notes=notes))
    return jobs


def runs_to_end(
    jobs: Sequence[NodeJob], pick: Pick, waiting: Sequence[Waiting]
) -> dict[str, str | None]:
    """The runs of a pick, and their directories where they are known."""
    runs: dict[str, str | None] = dict.fromkeys(pick.runs)
    runs |= {p.run: p.run_dir for job in jobs for p in job.processes if p.run}
    return runs | {one.run: one.run_dir for one in waiting}


def one_run(
    jobs: Sequence[NodeJob], pick: Pick, waiting: Sequence[Waiting], *, every: bool
) -> None:
    """Refuse to guess between two runs. Raises `UsageError` that lists them."""
    if every or pick.runs or pick.match is not None or pick.gpus:
        return
    places = {(p.run, job.node.name): None for job in jobs for p in job.processes if p.run}
    runs = {run: f"{run} on {fold(names)}" for run, names in grouped(places).items()}
    runs |= {one.run: f"{one.run}, which waits" for one in waiting if one.run not in runs}
    if len(runs) > 1:
        lines = "; ".join(runs.values())
        hint = "name one: --run ID, or --all-runs"
        raise UsageError(f"found {len(runs)} runs: {lines}", hint=hint)


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
    """Nodes with equal shares together, in the order of the first."""

    def share(job: NodeJob) -> tuple[str, str, int | None]:
        held = _gpu_bytes(job)
        owners = ",".join(sorted({process.user for process in job.processes}))
        return _roles(job), owners, None if held is None else round(held / (1 << 30))

    groups = grouped((share(job), job) for job in jobs if job.processes)
    rows = []
    for (roles, owners, _), members in groups.items():
        found = [process for job in members for process in job.processes]
        row = Row(
            nodes=fold([job.node.name for job in members]),
            count=len(members[0].processes),
            ranks=fold_ranks(p.rank for p in found if p.role == "trainer" and p.rank is not None),
            owners=owners,
            what=roles,
            gpu_bytes=_gpu_bytes(members[0]),
            oldest_s=max(process.age_s for process in found),
        )
        rows.append(row)
    return rows


def _roles(job: NodeJob) -> str:
    counts = Counter(process.role for process in job.processes)
    order = [*(role for role in ROLES if role in counts), *sorted(set(counts) - set(ROLES))]
    return ", ".join(f"{counts[role]} {role}" for role in order)


def _gpu_bytes(job: NodeJob) -> int | None:
    known = [one.gpu_bytes for one in job.processes if one.gpu_bytes is not None]
    return sum(known) if known else None


def fold_ranks(ranks: Iterable[int]) -> str:
    """0-3,7 of 0, 1, 2, 3, 7."""
    # In a run of neighbours, a rank less its place among all is the same.
    groups = groupby(enumerate(sorted(set(ranks))), lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def others_lines(jobs: Sequence[NodeJob]) -> list[str]:
    """What is left alone because it belongs to another user."""
    owners = grouped((process.user, job.node.name) for job in jobs for process in job.others)
    return [
        f"left alone: {counted(len(names), 'process')} of {user} on {fold(dict.fromkeys(names))} "
        f"(--user {user} is for them)"
        for user, names in owners.items()
    ]
