"""What the launcher wrote of a run's attempts: begins, incidents, restarts, the end. Pure.

Lines of `events.jsonl` and `incidents.jsonl` come as events, those of one file in the order in
which they were written; each has its own time. Where the head's clock was set back between two
lines, the times before are those that the later clock would have shown. A line may hold anything:
what no such line can hold is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from clusterctl.node_name import NodeName, is_node_name, node_name, node_names
from trainer.runlog.json_file import LARGEST, count, object_of, text, whole
from trainer.runlog.telemetry import Event

MOST = 1000  # of each kind that are kept; the oldest are dropped
MOST_TEXT = 1000  # characters
MOST_NODES = 4096  # of an attempt
MOST_SLOTS = 1 << 10  # ranks of a node
LATEST_S = 1e11
MONO_S = "mono_s"  # of the head's monotonic clock, in the data of an event
SLACK_S = 1.0  # lines of several threads may change places
USER_STOP, UNKNOWN = "user-stop", "unknown"
INTERRUPTED = 130
_T = TypeVar("_T")
_Timed = TypeVar("_Timed", "Begin", "Incident", "Restart", "End", "Between")


@dataclass(frozen=True, slots=True)
class Begin:
    """An attempt begins."""

    number: int
    time_s: float  # unix time of the head, as all times here
    nodes: tuple[NodeName, ...] = ()
    spares: tuple[NodeName, ...] | None = None  # not used yet; None: the line does not say
    excluded: tuple[tuple[NodeName, str], ...] = ()  # (node, why) of those left out in this run
    world: int | None = None  # ranks
    checkpoint: str = ""  # that it continues from; "" the beginning
    text: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """What ended an attempt."""

    time_s: float
    cause: str  # its class
    text: str
    node: NodeName | None = None
    rank: int | None = None
    attempt: int | None = None
    action: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """It was decided that another attempt begins."""

    time_s: float
    attempt: int  # the next one
    cause: str
    text: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Of the whole run."""

    time_s: float
    exit_code: int
    text: str


@dataclass(frozen=True, slots=True)
class Between:
    """No attempt runs: the run waits for nodes, or is about to be started again."""

    time_s: float
    is_waiting: bool
    text: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything in order of time; `after_event` gives the next value."""

    begins: tuple[Begin, ...] = ()
    incidents: tuple[Incident, ...] = ()
    restarts: tuple[Restart, ...] = ()
    restart_count: int = 0  # also of those that are not kept any more
    end: End | None = None
    between: Between | None = None  # now
    last: tuple[float, float | None] = (0.0, None)  # unix and monotonic time of the last line


def node_of(event: Event) -> NodeName | None:
    """The node that an event of the launcher is about; None for what cannot be the name of one."""
    return node_name(event.data.get("node"))


def planned_nodes(plan: object) -> list[tuple[NodeName, int]]:
    """(name, ranks) of the nodes in plan.json; none at all where one cannot be a node."""
    nodes = plan.get("nodes") if isinstance(plan, Mapping) else None
    entries = [one for one in nodes or () if isinstance(one, dict)] if type(nodes) is list else []
    names = node_names([one.get("name") for one in entries], len(entries))
    slots = (one.get("slots") for one in entries)
    ranks = (whole(one, 0, MOST_SLOTS) or 0 for one in slots)
    return list(zip(names, ranks, strict=False))


def launcher_event(line: bytes | str) -> Event | None:
    """A line of events.jsonl as an event; None for one that is torn or something else."""
    entry = object_of(line)
    if not isinstance(entry.get("event"), str):
        return None
    data = dict(entry["data"]) if isinstance(entry.get("data"), dict) else {}
    if isinstance(entry.get("node"), str):
        data["node"] = entry["node"]
    if not is_node_name(data.get("node")):
        data.pop("node", None)
    if isinstance(entry.get("mono_s"), int | float):
        data[MONO_S] = float(entry["mono_s"])
    step = whole(data.get("step"))
    time_s = entry["time_s"] if isinstance(entry.get("time_s"), int | float) else 0.0
    if not 0 <= time_s <= LATEST_S:
        return None
    return Event(entry["event"], str(entry.get("text") or ""), data, step, time_s)


def after_event(journal: Journal, event: Event) -> Journal:
    """With one line of events.jsonl more; one without a time tells nothing here."""
    data = event.data
    if event.time_s <= 0:
        return journal
    # Another supervisor counts from the start of another machine.
    mono_s = data.get(MONO_S) if event.name != "supervisor" else None
    journal = _at(journal, event.time_s, mono_s)
    if event.name == "attempt":
        number = count(data.get("attempt"))
        if number is None:
            return journal
        end = journal.end if journal.end and journal.end.time_s > event.time_s else None
        begins = _in_order(journal.begins, _begin(number, event), lambda one: one.time_s)
        return replace(journal, begins=begins, end=end, between=None)
    if event.name == "restart":
        restart = Restart(
            event.time_s,
            count(data.get("attempt")) or 0,
            text(data.get("cause"), MOST_TEXT) or UNKNOWN,
            event.text,
            node_of(event),
        )
        restarts = _in_order(journal.restarts, restart, lambda one: one.time_s)
        done, between = journal.restart_count + 1, Between(event.time_s, False, event.text)
        return replace(journal, restarts=restarts, restart_count=done, between=between)
    if event.name == "waiting":
        known = journal.between
        since_s = known.time_s if known is not None and known.is_waiting else event.time_s
        return replace(journal, between=Between(since_s, True, event.text))
    if event.name == "end":
        end = End(event.time_s, whole(data.get("exit_code")) or 0, event.text)
        is_old = any(begin.time_s > end.time_s for begin in journal.begins[-1:])
        return journal if is_old else replace(journal, end=end, between=None)
    return journal


def _at(journal: Journal, time_s: float, mono_s: object) -> Journal:
    """Before a line of this time: all that is known is moved where the clock was set back, which is
    sure where the monotonic one has gone on."""
    mono = mono_s if isinstance(mono_s, float) else None
    last_s, last_mono = journal.last
    goes_on = mono is not None and last_mono is not None and mono >= last_mono
    if mono is None or last_mono is None or not goes_on or time_s >= last_s - SLACK_S:
        return replace(journal, last=(time_s, mono))
    by_s = time_s - last_s - (mono - last_mono)
    end, between = journal.end, journal.between
    return replace(
        journal,
        begins=tuple(_moved(one, by_s) for one in journal.begins),
        incidents=tuple(_moved(one, by_s) for one in journal.incidents),
        restarts=tuple(_moved(one, by_s) for one in journal.restarts),
        end=end and _moved(end, by_s),
        between=between and _moved(between, by_s),
        last=(time_s, mono),
    )


def _moved(one: _Timed, by_s: float) -> _Timed:
    return replace(one, time_s=one.time_s + by_s)


def after_incident(journal: Journal, event: Event) -> Journal:
    """With one line of incidents.jsonl more, as `incident_event` gives it."""
    data = event.data
    incident = Incident(
        event.time_s,
        text(data.get("class"), MOST_TEXT) or UNKNOWN,
        event.text,
        node_of(event),
        count(data.get("rank")),
        count(data.get("attempt")),
        text(data.get("action"), MOST_TEXT),
    )
    incidents = _in_order(journal.incidents, incident, lambda one: one.time_s)
    return replace(journal, incidents=incidents)


def incident_event(line: bytes | str) -> Event | None:
    """A line of incidents.jsonl as an event; None for one that is torn or something else."""
    entry = object_of(line)
    if not isinstance(entry.get("incident"), str):
        return None
    time_s = entry.get("time_s")
    if not isinstance(time_s, int | float) or not 0 <= time_s <= LATEST_S:
        return None
    kept = ("incident", "class", "node", "rank", "attempt", "action")
    data = {name: entry[name] for name in kept if isinstance(entry.get(name), str | int)}
    # Lines of 0.2 have only a type: `hang` is a class as well, the others say little.
    if not is_node_name(data.get("node")):
        data.pop("node", None)
    data.setdefault("class", entry["incident"] if entry["incident"] == "hang" else UNKNOWN)
    step = whole(entry.get("step"), -LARGEST, LARGEST)
    return Event("incident", str(entry.get("text") or ""), data, step, float(time_s))


def _begin(number: int, event: Event) -> Begin:
    data = event.data
    spares = data.get("spares")
    left_out = data.get("excluded")
    excluded = left_out if isinstance(left_out, list | tuple) else ()
    entries = (one for one in excluded[:MOST_NODES] if isinstance(one, Mapping))
    pairs = (one for one in entries if is_node_name(one.get("node")))
    return Begin(
        number,
        event.time_s,
        node_names(data.get("nodes"), MOST_NODES),
        node_names(spares, MOST_NODES) if isinstance(spares, list | tuple) else None,
        tuple((one["node"], text(one.get("why"), MOST_TEXT)) for one in pairs),
        count(data.get("world_size")),
        text(data.get("from"), MOST_TEXT),
        event.text,
    )


def _in_order(
    kept: tuple[_T, ...], new: _T, time_of: Callable[[_T], float], most: int = MOST
) -> tuple[_T, ...]:
    at = len(kept)
    while at and time_of(kept[at - 1]) > time_of(new):
        at -= 1
    return (*kept[:at], new, *kept[at:])[-most:]
