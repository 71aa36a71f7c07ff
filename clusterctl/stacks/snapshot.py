"""Reports of nodes as one snapshot of the job: what each process does, and whether it moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from checks import units
from clusterctl.remote.fanout import NodeResult
from clusterctl.stacks.frames import Book, Stack, parse_faulthandler, trim
from clusterctl.stacks.model import JobSnapshot, NodeView, Proc, Progress, Thread
from clusterctl.stacks.node_counters import read_counters
from clusterctl.stacks.wait_sites import WAITS_FOR_PEERS, Kind, Sites

TICK_S = 0.01  # SC_CLK_TCK is 100 on every Linux we know
SLEEPS = 0.05  # of a core: a rank that takes steps uses more
_SLEEP = re.compile(r"\bsleep\(")
AUTOGRAD = "pt_autograd"  # name of the threads in which torch computes backward passes of a device


def read_snapshot(
    results: Sequence[NodeResult[dict[str, Any]]],
    sites: Sites,
    *,
    is_part: bool = False,
    **about: Any,
) -> JobSnapshot:
    """Reports of all nodes as one; `about` are fields of `JobSnapshot`.

    `is_part`: the user left nodes out, so no rank is missing.
    """
    book, nodes, runs, world = Book(), [], {}, 0
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
            key = (report["machine"], row["pid"], row["start"])
            if key not in taken:  # two names of a machine show the same process
                taken.add(key)
                rows.append(row)
                world = max(world, row["world"] or 0)
                if row["run"]:
                    runs[row["run"]] = True
        nodes.append(_read_node(name, report, rows, book, sites))
    return JobSnapshot(nodes, None if is_part else world or None, tuple(runs), **about)


def _read_node(
    name: str, report: dict[str, Any], rows: Sequence[dict[str, Any]], book: Book, sites: Sites
) -> NodeView:
    stacks = book.stacks(report["frames"], report["stacks"], report["source"])
    same = ("py_spy", "rights", "kernel", "kernel_cut_s", "seconds", "late", "others")
    view = NodeView(name, **{key: report[key] for key in same})
    view.counters = read_counters(report["counters"])
    ages = {row["rank"]: row["age_s"] for row in rows if row["role"] == "trainer"}
    view.flight = {
        int(rank): _fresh(dump, ages.get(int(rank))) for rank, dump in report["flight"].items()
    }
    trainers: set[int] = set()  # ranks
    for row in rows:
        key = str(row["pid"])
        looks = [one["processes"][key] for one in report["samples"] if key in one["processes"]]
        proc = _read_proc(name, row, looks, stacks, book, sites)
        proc.files = tuple(report["open"].get(key, ()))
        view.procs.append(proc)
        if proc.rank is not None:
            if proc.role == "trainer":
                # The first started: a daemon that a trainer started has the rank's number, too.
                proc.role = "helper" if proc.rank in trainers else "trainer"
                trainers.add(proc.rank)
            if lines := report["logs"].get(key):
                view.logs[proc.rank] = lines
    return view


def _fresh(dump: dict[str, Any], process_s: float | None) -> dict[str, Any]:
    """A flight record; one that an earlier attempt left is an error."""
    if process_s is None or dump["age_s"] <= process_s:
        return dump
    error = f"older than the process ({units.duration(dump['age_s'])}, {units.duration(process_s)})"
    return {"path": dump["path"], "age_s": dump["age_s"], "error": error}


def _read_proc(
    node: str,
    row: dict[str, Any],
    looks: Sequence[dict[str, Any]],
    stacks: Sequence[Stack],
    book: Book,
    sites: Sites,
) -> Proc:
    pid = row["pid"]
    last: dict[str, Any] = looks[-1] if looks else {}
    dumped = [threads for look in looks if (threads := _threads(look, pid, stacks, book, sites))]
    mains = _acting(dumped, pid, last)
    main = mains[-1] if mains else None
    samples = [thread.stack for thread in mains]
    stack = main.stack if main else book.keep(())
    kind = main.kind if main else Kind.UNKNOWN
    seconds = last.get("at_s", 0.0) - looks[0].get("at_s", 0.0) if len(looks) > 1 else 0.0
    progress = judge_progress(looks, samples, pid, seconds)
    if kind == Kind.BACKWARD and progress == Progress.STUCK:
        kind = Kind.BACKWARD_WAIT  # in C++, and no thread computes
    operation, caller = sites.call(stack)
    return Proc(
        node=node,
        **{name: row[name] for name in ("pid", "ppid", "rank", "index", "user", "program")},
        role=_role(row["role"], kind, samples),
        state=last.get("state"),
        wchan=last.get("wchan"),
        clip=last.get("clip"),
        kind=kind,
        stack=stack,
        progress=progress,
        cpu_share=grown(looks, None, 1) * TICK_S / seconds if seconds > 0 else 0.0,
        seconds=seconds,
        how=last.get("how", "kernel"),
        error=last.get("error", ""),
        threads=dumped[-1] if dumped else (),
        kernel_stack=last.get("stack"),
        is_frozen=bool(last.get("frozen")),
        beats=tuple(look["beat"] for look in looks if look.get("beat")),
        repaired=any(look.get("repaired") for look in looks),
        owns_gil=main is not None and main.owns_gil,
        site_index=sites.match(stack),
        operation=operation,
        caller=caller,
    )


def _role(role: str, kind: Kind, stacks: Sequence[Stack]) -> str:
    """A stack shows better than a name what a forked child does."""
    # A forked worker whose rank has died looks like the rank: same command, same environment.
    works = any(f.function == "_worker_loop" for stack in stacks for f in stack.frames)
    if role in ("trainer", "loader", "helper") and works:
        return "loader"
    return "writer" if role == "loader" and kind == Kind.CHECKPOINT else role


def _threads(
    look: dict[str, Any], pid: int, stacks: Sequence[Stack], book: Book, sites: Sites
) -> tuple[Thread, ...]:
    found = [
        Thread(tid, name or "", stacks[number], sites.kind(stacks[number]), gil)
        for tid, name, number, _active, gil in look.get("threads", ())
    ]
    dumped = [] if found else parse_faulthandler(look.get("text", ""))
    # faulthandler names threads by address; the main thread comes last.
    for tid, (name, frames) in zip([*range(-1, -len(dumped), -1), pid], dumped, strict=False):
        stack = book.keep(trim(frames))
        found.append(Thread(tid, name, stack, sites.kind(stack), False))
    return tuple(found)


def _acting(dumps: Sequence[tuple[Thread, ...]], pid: int, look: dict[str, Any]) -> list[Thread]:
    """The thread that shows what the process does, in each dump that has it.

    The main one; while that is in a backward pass, a thread of autograd that runs a hook in Python,
    first of all one that waits for peers.
    """
    if not dumps:
        return []
    main = _main(dumps[-1], pid)

    def runs_hooks(thread: Thread) -> bool:
        name = _comm(look, str(thread.tid))
        is_autograd = name.startswith(AUTOGRAD) if name else thread.kind in WAITS_FOR_PEERS
        return thread.tid != main.tid and bool(thread.stack.frames) and is_autograd

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


def _comm(look: dict[str, Any], name: str) -> str:
    """The kernel's name of a thread; "" where the node did not report it."""
    row = look.get("tasks", {}).get(name)
    return row[4] or "" if row else ""


def grown(looks: Sequence[dict[str, Any]], names: Iterable[str] | None, column: int) -> int:
    """CPU ticks (column 1) or switches (2) of threads, or all, from the first look to the last."""
    if not looks or not looks[0].get("tasks") or not looks[-1].get("tasks"):
        return 0
    first, last = looks[0]["tasks"], looks[-1]["tasks"]
    counted = last if names is None else [name for name in names if name in last]
    return sum(max(0, last[n][column] - (first[n][column] if n in first else 0)) for n in counted)


def _is_ready(look: dict[str, Any], names: Iterable[str]) -> bool:
    """Whether one of these threads runs, or waits for a processor alone."""
    tasks = look.get("tasks", {})
    return any(tasks[name][0] == "R" for name in names if name in tasks)


def judge_progress(
    looks: Sequence[dict[str, Any]], stacks: Sequence[Stack], pid: int, seconds: float
) -> Progress:
    """stuck: same stack, no CPU, no switch, or a sleep; spinning: same functions, CPU used; unsure:
    ready to run all the time, and it got no CPU; else moving.

    `stacks` are of the main thread, one a sample. A thread that wakes once a second to read a
    clock, or that a dump wakes, does not move: hence the small allowances.
    """
    states = [look.get("state") for look in looks]
    if not states or states[-1] == "Z" or None in states:
        return Progress.GONE
    if len(looks) < 2 or seconds <= 0:
        return Progress.UNSURE
    # The main thread and autograd's. NCCL's, gloo's and watchdog threads poll while the rank hangs.
    tasks = looks[-1].get("tasks", {})
    names = [n for n in tasks if n == str(pid) or _comm(looks[-1], n).startswith(AUTOGRAD)]
    spent, switches = grown(looks, names, 1), grown(looks, names, 2)
    share = spent * TICK_S / seconds
    few_switches = switches <= max(2.0, 2.0 * seconds)
    quiet = spent <= max(1.0, 2.0 * seconds) and few_switches
    is_one_place = len(set(stacks)) < 2
    if is_one_place and quiet and all(_is_ready(look, names) for look in looks):
        return Progress.UNSURE  # it would run, and other programs have the processors
    # A loop that sleeps and looks again wakes often, and goes nowhere.
    sleeps = is_one_place and share < SLEEPS and bool(stacks) and _SLEEP.search(stacks[-1].source)
    if is_one_place and (quiet or sleeps):
        return Progress.STUCK
    if len(stacks) < 2:  # only the kernel's facts
        return Progress.SPINNING if share > 0.9 and not switches else Progress.UNSURE
    # What burns CPU never gives it up; on a crowded machine its share may still be small.
    burns = share >= 0.5 or (share >= 0.1 and few_switches)
    if burns and len({stack.coarse for stack in stacks}) == 1:
        return Progress.SPINNING
    return Progress.MOVING
