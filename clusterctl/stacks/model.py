"""What was found of a job: every process with its stack, its progress and its kernel state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.remote.fanout import NodeResult
from clusterctl.stacks.frames import Book, Stack, parse_faulthandler, trim
from clusterctl.stacks.progress import AUTOGRAD, TICK_S, Progress, comm, grown, judge_progress
from clusterctl.stacks.wait_sites import WAITS_FOR_PEERS, Kind, Sites

_STORAGE = re.compile(
    r"fuse|request_wait_answer|nfs|rpc_wait|cifs|smb|ceph|lustre|gpfs|folio_wait|wait_on_page"
    r"|io_schedule|blk_|jbd2|xfs_|ext4_|rq_qos"
)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread in the last sample."""

    tid: int
    name: str
    stack: Stack
    kind: Kind
    owns_gil: bool


ROW = ("pid", "ppid", "rank", "role", "index", "user", "program")  # of a node's rows


@dataclass(slots=True)
class Proc:
    """One process over all samples."""

    node: str
    pid: int
    ppid: int
    rank: int | None
    role: str
    index: int | None
    user: str
    program: str
    state: str | None  # of the last sample: R S D T Z; None: gone
    kind: Kind
    stack: Stack
    progress: Progress
    cpu_share: float  # of the whole process between first and last sample, 1 is one core
    seconds: float  # between its first and last sample
    how: str  # py-spy, faulthandler, kernel
    error: str
    threads: tuple[Thread, ...] = ()
    wchan: str | None = None
    kernel_stack: str | None = None
    is_frozen: bool = False  # by its cgroup
    beats: tuple[dict[str, Any], ...] = ()  # of each sample that had one
    clip: dict[str, Any] | None = None
    files: tuple[str, ...] = ()
    repaired: bool = False
    owns_gil: bool = False
    samples: tuple[Stack, ...] = ()
    site_index: int = 0  # of the frame that decided the kind
    operation: str = "?"  # what it waits in, where it waits: all_reduce, backward
    caller: str = "?"  # the user's frame that called it

    def where(self, limit: int = 4) -> str:
        """The site and the user's frames around it; from the innermost frame for its own code."""
        own = self.kind in (Kind.WORK, Kind.CHECKPOINT, Kind.CODE, Kind.LOG)
        return self.stack.text(0 if own else self.site_index, limit)

    @property
    def label(self) -> str:
        """`rank 64 loader 7`."""
        rank = [] if self.rank is None else [f"rank {self.rank}"]
        return " ".join([*rank, self.role, *([] if self.index is None else [str(self.index)])])

    @property
    def beat(self) -> dict[str, Any] | None:
        return self.beats[-1] if self.beats else None

    @property
    def stood_s(self) -> float:
        """Seconds for which it is known to be where it is."""
        ages = [self.seconds if self.progress == Progress.STUCK else 0.0]
        ages += [self.beat["age_s"]] if self.beat else []
        ages += [self.clip["age_s"]] if self.clip else []
        return max(ages)

    @property
    def waits_for_peers(self) -> bool:
        return self.kind in WAITS_FOR_PEERS

    @property
    def in_storage(self) -> bool:
        """Sleeps in the kernel for a file system or disk."""
        text = f"{self.wchan or ''} {' '.join((self.kernel_stack or '').splitlines()[:6])}"
        return self.state == "D" and bool(_STORAGE.search(text)) and not self.is_frozen

    def file(self) -> str | None:
        """The file it works on: the one our decoder reports, else the first open one."""
        if self.clip:
            return str(self.clip["path"])
        return self.files[0] if self.files else None


@dataclass(slots=True)
class NodeView:
    """What one node reported; `silent` is why it reported nothing."""

    name: str
    procs: list[Proc] = field(default_factory=list)
    silent: str | None = None
    py_spy: str | None = None
    rights: dict[str, Any] = field(default_factory=dict)
    logs: dict[int, list[str]] = field(default_factory=dict)  # by rank
    flight: dict[int, dict[str, Any]] = field(default_factory=dict)  # by rank
    kernel: list[tuple[float, str]] = field(default_factory=list)  # (age in s, line)
    kernel_cut_s: float | None = None  # how far back its log was read, where that is no full hour
    seconds: float = 0.0
    late: list[str] = field(default_factory=list)
    others: int = 0


@dataclass(slots=True)
class JobSnapshot:
    """A job on all nodes at one time."""

    nodes: list[NodeView]
    world: int | None
    runs: tuple[str, ...]
    interval_s: float
    samples: int
    seconds: float
    taken_s: float = 0.0  # unix time, for people

    @property
    def procs(self) -> list[Proc]:
        return [proc for node in self.nodes for proc in node.procs]

    @property
    def trainers(self) -> list[Proc]:
        """One process per rank, in order of rank."""
        found = [p for p in self.procs if p.role == "trainer"]
        return sorted(found, key=lambda p: (p.rank is None, p.rank or 0, p.pid))

    @property
    def silent(self) -> list[NodeView]:
        return [node for node in self.nodes if node.silent is not None]

    @property
    def twice(self) -> dict[int, list[str]]:
        """Ranks that run on several nodes, with these nodes: then more than one job was found."""
        homes: dict[int, list[str]] = {}
        for proc in self.trainers:
            if proc.rank is not None and proc.progress != Progress.GONE:
                homes.setdefault(proc.rank, []).append(proc.node)
        return {rank: names for rank, names in homes.items() if len(names) > 1}

    def loaders(self, trainer: Proc) -> list[Proc]:
        """Loader processes of a trainer: its children, or by rank where a fork server is used."""
        mine = [p for p in self.procs if p.role == "loader" and p.node == trainer.node]
        own = [p for p in mine if p.ppid == trainer.pid]
        return own or [p for p in mine if trainer.rank is not None and p.rank == trainer.rank]


def read_snapshot(
    results: Sequence[NodeResult[dict[str, Any]]],
    sites: Sites,
    *,
    interval_s: float,
    samples: int,
    seconds: float = 0.0,
    taken_s: float = 0.0,
    is_part: bool = False,
) -> JobSnapshot:
    """Reports of all nodes as one. `is_part`: the user left nodes out, so no rank is missing."""
    book, nodes, runs = Book(), [], {}
    world: int | None = None
    taken: set[tuple[str, int, int]] = set()
    for result in results:
        name = result.node.name
        if result.value is None:
            assert result.unreachable is not None
            nodes.append(NodeView(name, silent=result.unreachable.sentence()))
            continue
        report = result.value
        rows = []
        for row in report["rows"]:
            key = (str(report.get("machine")), row["pid"], row["start"])
            if key not in taken:  # two names of a machine show the same process
                taken.add(key)
                rows.append(row)
                world = max(world or 0, row["world"] or 0) or None
                if row["run"]:
                    runs[row["run"]] = True
        nodes.append(_read_node(name, report, rows, book, sites))
    world = None if is_part else world
    return JobSnapshot(nodes, world, tuple(runs), interval_s, samples, seconds, taken_s)


def _read_node(
    name: str, report: dict[str, Any], rows: Sequence[dict[str, Any]], book: Book, sites: Sites
) -> NodeView:
    stacks = book.stacks(report["frames"], report["stacks"], report.get("source", {}))
    same = ("py_spy", "rights", "kernel", "kernel_cut_s", "seconds", "late", "others")
    view = NodeView(name, **{key: report[key] for key in same if key in report})
    view.flight = {int(rank): dump for rank, dump in report.get("flight", {}).items()}
    trainers: set[int] = set()  # ranks
    for row in rows:
        key = str(row["pid"])
        looks = [sample["processes"].get(key) for sample in report["samples"]]
        looks = [look for look in looks if look]
        files = report.get("open", {}).get(key, ())
        proc = _read_proc(name, row, looks, files, stacks, book, sites)
        view.procs.append(proc)
        if proc.rank is not None:
            if proc.role == "trainer":
                # The first started: a daemon that a trainer started has the rank's number, too.
                proc.role = "helper" if proc.rank in trainers else "trainer"
                trainers.add(proc.rank)
            if lines := report.get("logs", {}).get(key):
                view.logs[proc.rank] = lines
    return view


def _read_proc(
    node: str,
    row: dict[str, Any],
    looks: Sequence[dict[str, Any]],
    files: Sequence[str],
    stacks: Sequence[Stack],
    book: Book,
    sites: Sites,
) -> Proc:
    pid = row["pid"]
    last: dict[str, Any] = looks[-1] if looks else {"state": None}
    dumps = [_threads(look, pid, stacks, book, sites) for look in looks]
    dumped = [threads for threads in dumps if threads]
    mains = _acting(dumped, pid, last)
    main = mains[-1] if mains else None
    stack = main.stack if main else book.keep(())
    seconds = last.get("at_s", 0.0) - looks[0].get("at_s", 0.0) if len(looks) > 1 else 0.0
    proc = Proc(
        node=node,
        **{name: row[name] for name in ROW},
        state=last.get("state"),
        kind=main.kind if main else Kind.UNKNOWN,
        stack=stack,
        progress=Progress.UNSURE,
        cpu_share=grown(looks, None, 1) * TICK_S / seconds if seconds > 0 else 0.0,
        seconds=seconds,
        how=last.get("how", "kernel"),
        error=last.get("error", ""),
        threads=dumped[-1] if dumped else (),
        wchan=last.get("wchan"),
        kernel_stack=last.get("stack"),
        is_frozen=bool(last.get("frozen")),
        beats=tuple(look["beat"] for look in looks if look.get("beat")),
        clip=last.get("clip"),
        files=tuple(files),
        repaired=any(look.get("repaired") for look in looks),
        owns_gil=main.owns_gil if main else False,
        samples=tuple(m.stack for m in mains),
        site_index=sites.match(stack),
    )
    _correct_role(proc)
    proc.operation, proc.caller = sites.call(stack)
    proc.progress = judge_progress(looks, proc.samples, pid, seconds)
    if proc.kind == Kind.BACKWARD and proc.progress == Progress.STUCK:
        proc.kind = Kind.BACKWARD_WAIT  # in C++, and no thread computes
    return proc


def _threads(
    look: dict[str, Any], pid: int, stacks: Sequence[Stack], book: Book, sites: Sites
) -> tuple[Thread, ...]:
    found = []
    for tid, name, number, _active, gil in look.get("threads") or ():
        stack = stacks[number]
        found.append(Thread(tid, name or "", stack, sites.kind(stack), gil))
    dumped = parse_faulthandler(look.get("text") or "") if not found else []
    for place, (name, frames) in enumerate(dumped):
        stack = book.keep(trim(frames))
        # faulthandler names threads by address; the main thread comes last.
        tid = pid if place == len(dumped) - 1 else -1 - place
        found.append(Thread(tid, name, stack, sites.kind(stack), False))
    return tuple(found)


def _acting(dumps: Sequence[tuple[Thread, ...]], pid: int, look: dict[str, Any]) -> list[Thread]:
    """The thread that shows what the process does, in each dump that has it.

    That is the main one, or, while it is in a backward pass of a device, one of autograd's threads
    that runs a hook in Python, first of all one that waits for peers.
    """
    if not dumps:
        return []
    main = _main(dumps[-1], pid)

    def runs_hooks(thread: Thread) -> bool:
        if thread.tid == main.tid or not thread.stack.frames:
            return False
        name = comm(look, str(thread.tid))  # "" where the node did not report it
        return name.startswith(AUTOGRAD) if name else thread.kind in WAITS_FOR_PEERS

    hooks = list(filter(runs_hooks, dumps[-1])) if main.kind == Kind.BACKWARD else []
    if not hooks:
        return [_main(threads, pid) for threads in dumps]
    acting = min(hooks, key=lambda thread: thread.kind not in WAITS_FOR_PEERS)
    return [thread for threads in dumps for thread in threads if thread.tid == acting.tid]


def _main(threads: Sequence[Thread], pid: int) -> Thread:
    for thread in threads:
        if thread.tid == pid or thread.name == "MainThread":
            return thread
    return threads[0]


def _correct_role(proc: Proc) -> None:
    """A stack shows better than a name what a forked child does."""
    functions = {frame.function for stack in proc.samples for frame in stack.frames}
    if proc.role in ("trainer", "loader", "helper"):
        # A forked worker whose rank has died looks like the rank: same command, same environment.
        if "_worker_loop" in functions:
            proc.role = "loader"
        elif proc.role == "loader" and proc.kind == Kind.CHECKPOINT:
            proc.role = "writer"
