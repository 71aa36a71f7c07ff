"""What the launcher and the trainer recorded of a run's attempts, from the files of its directory.

Any of them may be missing, torn, or end in the middle: a supervisor may have been killed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.launch.causes.kinds import Cause, Evidence, Fact, Kind, Source
from clusterctl.launch.node_reports import FACT_KINDS
from clusterctl.node_name import node_name
from clusterctl.runs.attempts import Account, account
from clusterctl.runs.find import EVENTS_FILE, INCIDENTS_FILE, PLAN_FILE
from clusterctl.runs.journal import (
    Journal,
    after_event,
    after_incident,
    incident_event,
    launcher_event,
    node_of,
    planned_nodes,
)
from clusterctl.runs.step_lines import StepsOfLines, lines_of_steps
from trainer.runlog import run_files, slow_ranks
from trainer.runlog.json_file import object_of
from trainer.runlog.slow_ranks import Spell
from trainer.runlog.telemetry import FILE, STEP_MARK, Event, decode

MOST_BYTES = 64 << 20  # that are read of events.jsonl and incidents.jsonl each
STEP_BYTES = 4 << 20  # of the end of telemetry.jsonl, of which steps are read
_ENDED = re.compile(r"rank (\d{1,7}): (.*)", re.ASCII | re.DOTALL)
_RANK = re.compile(r"rank (\d{1,7}) is pid ", re.ASCII)


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of a rank, as its agent told it."""

    rank: int
    node: str
    code: int | None
    how: str
    at_s: float  # of the head's monotonic clock


@dataclass(frozen=True, slots=True)
class Incident:
    """A line of incidents.jsonl, with its causes."""

    text: str
    time_s: float
    attempt: int | None
    root: Cause | None
    consequences: tuple[Cause, ...]
    consequence_count: int
    headline: str
    stacks: str


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What was written between the begin of an attempt and of the next one."""

    ends: tuple[RankEnd, ...] = ()
    facts: tuple[Fact, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)  # of a rank
    incident: Incident | None = None
    failure: tuple[int, str] | None = None  # exit code and sentence with which it was stopped
    stopped_s: float = float("inf")  # when, of the head's monotonic clock
    notes: tuple[tuple[float, str], ...] = ()  # (unix time, line) of connections and errors


@dataclass(frozen=True, slots=True)
class Recorded:
    """The whole run."""

    account: Account
    journal: Journal
    records: Mapping[int, AttemptRecord]
    plan: Mapping[str, Any]
    trainer_end: str = ""  # done, stopped or failed, as the trainer says; "" where it does not
    last_step: int | None = None
    newest_s: float = 0.0  # unix time of the last record
    slow: tuple[Spell, ...] = ()  # of ranks, over all attempts


def read_recorded(run_dir: Path) -> Recorded:
    """Read the launcher's and the trainer's files; what is not there is left out."""
    journal, newest_s = Journal(), 0.0
    # By attempt, in the order of the lines: a clock may have been set meanwhile.
    events: dict[int, list[tuple[Event, Mapping[str, Any]]]] = {}
    for line in lines_of(run_dir / EVENTS_FILE):
        raw = object_of(line)
        event = launcher_event(line)
        if event is not None:
            journal, newest_s = after_event(journal, event), event.time_s
            now = journal.begins[-1].number if journal.begins else 0
            events.setdefault(now, []).append((event, raw))
    incidents = []
    for line in lines_of(run_dir / INCIDENTS_FILE):
        event = incident_event(line)
        if event is not None:
            journal = after_incident(journal, event)
            incidents.append(_incident(object_of(line)))
    trained, slow = _steps(run_dir / FILE)
    steps = trained.steps
    found = account(steps, journal, is_cut=trained.is_cut)
    begins = [one.time_s for one in journal.begins] or [0.0]
    numbers = [one.number for one in journal.begins] or [1]
    plan = run_files.object_in(run_dir, PLAN_FILE)
    homes = _homes(plan)
    records = {}
    for index, number in enumerate(numbers):
        until_s = begins[index + 1] if index + 1 < len(begins) else float("inf")
        from_s = begins[index] if index else 0.0
        early = [] if index else [one for of in events if of < number for one in events[of]]
        own = [*early, *events.get(number, ())]
        told = [
            one
            for one in incidents
            if one.attempt == number or (one.attempt is None and from_s <= one.time_s < until_s)
        ]
        # A full disk may have kept the plan of an earlier attempt there.
        nodes = journal.begins[index].nodes if journal.begins else ()
        is_its = index + 1 == len(begins) and (not nodes or set(homes.values()) <= set(nodes))
        records[number] = _record(own, told[-1] if told else None, homes if is_its else {})
    last = steps.starts[-1] if steps.starts else None
    times = [newest_s, *(one.last_s for one in steps.starts[-1:])]
    return Recorded(
        found,
        journal,
        records,
        plan,
        last.ending if last else "",
        last.last if last else None,
        max(times, default=0.0),
        slow,
    )


def lines_of(path: Path, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Lines of a plain file, of a very long one the last; none where it cannot be read."""
    with contextlib.suppress(OSError):
        yield from run_files.lines(path, _owners(path), most)


def _owners(path: Path) -> set[int]:
    """Whose files count in a run directory. Raises `OSError`."""
    return {path.parent.stat().st_uid, os.getuid(), 0}


def _steps(path: Path) -> tuple[StepsOfLines, tuple[Spell, ...]]:
    """Events of the whole file, steps of its end and those that starts began and ended with."""
    found, slow = StepsOfLines(), tuple[Spell, ...]()
    with contextlib.suppress(OSError):
        for line, is_exact in lines_of_steps(path, STEP_BYTES, _owners(path)):
            found.add(line, is_exact)
            if not line.startswith(STEP_MARK) and isinstance(event := decode(line), Event):
                slow = slow_ranks.after(slow, event)
    return found, slow


def _record(
    events: Sequence[tuple[Event, Mapping[str, Any]]],
    incident: Incident | None,
    homes: Mapping[int, str],
) -> AttemptRecord:
    ends: list[RankEnd] = []
    ended: set[int] = set()  # thousands of ranks
    facts: list[Fact] = []
    lost: dict[str, str] = {}
    nodes = dict(homes)
    notes: list[tuple[float, str]] = []
    failure: tuple[int, str] | None = None
    stopped_s = float("inf")
    for event, raw in events:
        node = node_of(event) or ""
        mono_s = raw.get("mono_s")
        at_s = float(mono_s) if isinstance(mono_s, int | float) else 0.0
        if event.name == "rank" and (match := _RANK.match(event.text)):
            nodes[int(match[1])] = node
        elif event.name == "rank-ended" and (match := _ENDED.fullmatch(event.text)):
            code = event.data.get("code")
            code = code if type(code) is int else None
            if (died := int(match[1])) not in ended:
                ended.add(died)
                ends.append(RankEnd(died, node, code, match[2], at_s))
        elif event.name == "fact":
            name, _, line = event.text.partition(": ")
            rank = event.data.get("rank")
            number = re.search(r"Xid \([^()]{0,100}\): (\d+)", line)
            if name in FACT_KINDS:
                said = Evidence(Source.KERNEL, line)
                detail = number[1] if number else ""
                rank = rank if type(rank) is int else None
                age_s = event.data.get("age_s")  # it may have been read long after it was logged
                at_s -= float(age_s) if isinstance(age_s, int | float) else 0.0
                facts.append(Fact(FACT_KINDS[name], node, said, detail, rank, at_s))
        elif event.name == "lost":
            lost[node] = event.text
        elif event.name == "failure":
            code = event.data.get("exit_code")
            failure, stopped_s = (code if type(code) is int else 1, event.text), at_s
        if event.name in ("lost", "disconnected", "cut-off", "error", "hang", "verdict"):
            where = f"{node}: " if node and not event.text.startswith(node) else ""
            notes.append((event.time_s, f"{where}{event.text}"))
    return AttemptRecord(
        tuple(ends), tuple(facts), lost, nodes, incident, failure, stopped_s, tuple(notes)
    )


def _incident(entry: Mapping[str, Any]) -> Incident:
    causes = entry.get("consequences")
    others = [_cause(one) for one in causes] if isinstance(causes, list) else []
    count = entry.get("consequence_count")
    attempt, time_s = entry.get("attempt"), entry.get("time_s")
    return Incident(
        str(entry.get("text") or ""),
        float(time_s) if isinstance(time_s, int | float) else 0.0,
        attempt if type(attempt) is int else None,
        _cause(entry.get("root")) or _cause(_older(entry)),
        tuple(one for one in others if one is not None),
        count if type(count) is int else len(others),
        str(entry.get("headline") or ""),
        str(entry.get("stacks") or ""),
    )


def _older(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The root of a line that has a class and no object for it."""
    name = str(entry.get("class") or entry.get("incident") or "")
    kind = next((str(kind) for kind in Kind if name.startswith(f"{kind}-")), name)
    rank = entry.get("rank")
    return {
        "class": name,
        "detail": name[len(kind) + 1 :],
        "node": node_name(entry.get("node")),
        "rank": rank if type(rank) is int else None,
        "is_root": True,
        "is_of_node": False,
        "file": "",
        "note": "",
        "evidence": None,
    }


def _cause(data: Any) -> Cause | None:
    try:
        return Cause.from_json(data)
    except (ValueError, LookupError, TypeError):
        return None


def _homes(plan: Mapping[str, Any]) -> dict[int, str]:
    """The node of each rank by the plan; ranks that have started say so themselves."""
    homes: dict[int, str] = {}
    for name, slots in planned_nodes(plan):
        homes.update({len(homes) + index: name for index in range(slots)})
    return homes
