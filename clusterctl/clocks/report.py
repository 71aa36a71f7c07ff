"""Clocks of a cluster: each node against the head and the others, steps, and what steers them.

Offsets are positive where a clock is ahead. A node is judged by its distance from the middle of
all clocks, the head's among them: most clocks decide whose clock is wrong.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from checks import units
from checks.facts import NOT_ASKED, Clock, Fleet, Machine, Maybe, NodeFacts, Unknown, known, to_json
from checks.finding import Finding, Verdict
from checks.profile import Profile
from checks.rules.time import clock_moves, middle_clock
from checks.runner import run_checks
from checks.units import counted
from clusterctl.nodes import fold, grouped
from clusterctl.remote.facts import read_node
from clusterctl.remote.fanout import NodeResult

HEAD = "(this machine)"
RULES = ("time.sync", "time.daemons", "time.sources", "time.log_ahead", "time.clocksource")


@dataclass(frozen=True, slots=True)
class ClockRow:
    """One node's clock. `flags` are its faults; a good one has none."""

    node: str
    offset_s: Maybe[float]  # against the head
    error_s: Maybe[float]
    moved_s: Maybe[float]  # of wall against boot time: during this run, or since the previous one
    steered: str = "-"
    sources: str = "-"
    flags: tuple[str, ...] = ()
    verdict: str = "unknown"  # good, bad (exit 1), unknown (exit 3)


@dataclass(frozen=True, slots=True)
class Clocks:
    """All rows in the hostfile's order, and what they are measured against."""

    rows: tuple[ClockRow, ...]
    middle_s: Maybe[float]  # of all clocks, against the head
    head_flags: tuple[str, ...]
    limit_s: float
    findings: tuple[Finding, ...] = ()
    one_machine: bool = False  # what steers its clock is not judged

    @property
    def exit_code(self) -> int:
        verdicts = {row.verdict for row in self.rows}
        if "bad" in verdicts or self.head_flags:
            return 1
        return 3 if "unknown" in verdicts or not self.rows else 0

    def widest(self) -> Pair | None:
        """The two nodes that differ most."""
        rows = _measured(self.rows)
        if len(rows) < 2:
            return None
        return _pair(max(rows, key=lambda row: row[1]), min(rows, key=lambda row: row[1]))

    def summary(self) -> str:
        """`8 clocks within 0.21 ms (±0.10 ms) of each other`, or what is wrong with how many."""
        clocks, answered = counted(len(self.rows), "clock"), len(_measured(self.rows))
        words = [clocks if answered == len(self.rows) else f"{answered} of {clocks}"]
        if widest := self.widest():
            ahead, behind, apart_s, error_s = widest
            apart = f"{units.measured(apart_s)} ±{units.measured(error_s)}"
            words.append(f"widest apart {ahead} and {behind}: {apart}")
        for verdict in ("bad", "unknown"):
            names = [row.node for row in self.rows if row.verdict == verdict]
            words += [f"{verdict}: {fold(names)}"] if names else []
        if self.one_machine:
            words.append("all on one machine: what steers its clock is not judged")
        return "; ".join([*words, *self.head_flags])


class Pair(NamedTuple):
    ahead: str
    behind: str
    apart_s: float
    error_s: float  # the sum of their error bounds


def _measured(rows: Sequence[ClockRow]) -> list[tuple[str, float, float]]:
    """(node, offset, error bound) of the nodes that were measured."""
    return [
        (row.node, row.offset_s, row.error_s)
        for row in rows
        if not isinstance(row.offset_s, Unknown) and not isinstance(row.error_s, Unknown)
    ]


def _pair(one: tuple[str, float, float], other: tuple[str, float, float]) -> Pair:
    return Pair(one[0], other[0], one[1] - other[1], one[2] + other[2])


def read_clocks(results: Sequence[NodeResult[dict[str, Any]]]) -> tuple[NodeFacts, ...]:
    """Facts from the clock payload's envelopes."""
    read = [(read_node(result), result.value) for result in results]
    return tuple(
        dataclasses.replace(one, machine=_machine(value["node"]["boot_id"])) if value else one
        for one, value in read
    )


def _machine(boot_id: str | None) -> Machine:
    boot = Unknown("the node reported no boot id") if boot_id is None else boot_id
    return Machine(boot, NOT_ASKED, NOT_ASKED, "")


def judge(
    nodes: Sequence[NodeFacts],
    limits: Profile,
    *,
    head_boot_id: str | None = None,
    head_moved_s: float = 0.0,
) -> Clocks:
    """All clocks together: distance, steps, and the checks of preflight about time.

    The checks know one machine under several names (a demo) by its boot id and are silent there;
    distance and steps are measured all the same.
    """
    head = NodeFacts(HEAD, machine=_machine(head_boot_id))
    fleet = Fleet((*nodes, head))
    report = run_checks(fleet, limits, only=RULES)
    found = report.bad_by_node()
    trips = known(clock.exchange for clock in known(node.clock for node in nodes))
    middle_s = middle_clock([trip.offset_s for trip in trips])
    head_flags = []
    if len(trips) > 1:
        error_s = sorted(trip.error_s for trip in trips)[len(trips) // 2]
        if abs(middle_s) - error_s > limits.clock_skew_warn_s:
            head_flags.append(f"this machine's own clock is {away(-middle_s)} the nodes'")
    if abs(head_moved_s) > limits.clock_step_warn_s:
        moved = f"stepped {units.offset(head_moved_s)} during the measurement"
        head_flags.append(f"this machine's own clock was {moved}")
    return Clocks(
        rows=tuple(_row(node, middle_s, limits, found.get(node.name, ())) for node in nodes),
        middle_s=middle_s if trips else Unknown("no clock answered"),
        head_flags=tuple(head_flags),
        limit_s=limits.clock_skew_warn_s,
        findings=tuple(one for one in report.findings if one.nodes != (HEAD,)),
        one_machine=fleet.one_machine,
    )


def _row(
    node: NodeFacts, middle_s: float, limits: Profile, findings: Sequence[Finding]
) -> ClockRow:
    clock = node.clock
    if node.unreached is not None:
        why = Unknown(str(node.unreached))
        return ClockRow(node.name, why, why, why, flags=(f"no answer: {why}",))
    if isinstance(clock, Unknown):
        return ClockRow(node.name, clock, clock, clock, flags=(clock.reason,))
    bad, unsure, trip = [], [], clock.exchange
    if isinstance(trip, Unknown):
        unsure.append(f"distance: {trip}")
    else:
        distance_s = trip.offset_s - middle_s
        if abs(distance_s) - trip.error_s > limits.clock_skew_warn_s:
            bad.append(f"{away(distance_s)} the others")
        elif trip.error_s > limits.clock_skew_warn_s:
            took = units.measured(2 * trip.error_s)
            unsure.append(f"a round trip of {took} is too long to measure the offset")
    moves, limit_s = clock_moves(node, clock), limits.clock_step_warn_s
    bad += [step_words(moved_s, when) for moved_s, when in moves if abs(moved_s) > limit_s]
    unsure += [] if moves else [f"steps: {clock.moved_s}"]
    for one in findings:
        (unsure if one.verdict is Verdict.UNKNOWN else bad).append(one.evidence)
    return ClockRow(
        node=node.name,
        offset_s=trip if isinstance(trip, Unknown) else trip.offset_s,
        error_s=trip if isinstance(trip, Unknown) else trip.error_s,
        moved_s=max((moved_s for moved_s, _ in moves), key=abs, default=clock.moved_s),
        steered=steered_by(clock),
        sources=count_sources(clock),
        flags=(*bad, *unsure),
        verdict="bad" if bad else "unknown" if unsure else "good",
    )


def step_words(moved_s: float, when: str) -> str:
    """`moved back 2.500 s during the measurement`."""
    return f"moved {'back' if moved_s < 0 else 'forward'} {units.measured(abs(moved_s))} {when}"


def steered_by(clock: Clock) -> str:
    """The daemon that steers the clock and its source; the checks judge it."""
    track = clock.tracking
    if not isinstance(track, Unknown):
        if track.is_local:
            return "chrony: its own clock"
        if track.ref_id == "00000000":
            return "chrony: nobody"
        return f"chrony: {track.ref_name or track.ref_id}, stratum {track.stratum}"
    if isinstance(clock.sources, tuple) and clock.sources:
        chosen = [one for one in clock.sources if one.state in ("selected", "pps")]
        own = any(one.is_own_clock for one in chosen[:1])
        who = "itself" if own else chosen[0].address if chosen else "nobody"
        return f"ntpd: {who}"
    who = "daemons not known"
    if not isinstance(clock.daemons, Unknown):
        who = ", ".join(clock.daemons) or "no daemon seen"
    for value in (clock.kernel_synced, clock.ntp_synchronized):
        if isinstance(value, bool):
            return f"{who}; {'synchronised' if value else 'not synchronised'}"
    return f"{who}; status unavailable"


def count_sources(clock: Clock) -> str:
    """`2 (1 selected, 1 combined)`."""
    if isinstance(clock.sources, Unknown):
        return "-"
    states = Counter(one.state for one in clock.sources)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{len(clock.sources)} ({counts})" if states else "0"


def away(seconds: float) -> str:
    """`48.9 ms ahead of`, `2.500 s behind`."""
    return f"{units.measured(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def folded(clocks: Clocks) -> list[tuple[str, list[ClockRow]]]:
    """(node set, rows) with good nodes that are steered alike together, in order of first node."""
    alike = grouped(
        ((row.verdict, row.steered, row.sources, row.flags), row) for row in clocks.rows
    )
    return [(fold([row.node for row in rows]), rows) for rows in alike.values()]


def cells(rows: Sequence[ClockRow]) -> list[str]:
    """Offset, error, step, steered by, sources, flags; of several rows the range and the worst."""
    offsets = sorted(known(row.offset_s for row in rows))
    errors, moves = known(row.error_s for row in rows), known(row.moved_s for row in rows)
    ends = list(dict.fromkeys(map(units.offset, offsets[:1] + offsets[-1:])))
    if len({end.partition(" ")[2] for end in ends}) == 1:  # -0.02 to +0.01 ms
        ends[:-1] = [end.partition(" ")[0] for end in ends[:-1]]
    offset = " to ".join(ends) or "-"
    error = units.measured(max(errors)) if errors else "-"
    moved = units.offset(max(moves, key=abs)) if moves else "-"
    first = rows[0]
    mark = {"bad": "!", "unknown": "?"}.get(first.verdict, " ")
    return [f"{offset}{mark}", error, moved, first.steered, first.sources, "; ".join(first.flags)]


def to_document(clocks: Clocks, nodes: Sequence[NodeFacts], pairs: bool) -> dict[str, Any]:
    """Everything for --json; a value that could not be read is null."""
    widest = clocks.widest()
    document: dict[str, Any] = {
        "limit_s": clocks.limit_s,
        "middle_s": to_json(clocks.middle_s),
        "head_flags": list(clocks.head_flags),
        "widest": None if widest is None else widest._asdict(),
        "nodes": [
            {
                **to_json(row),
                "unreachable": to_json(node.unreached),
                "last_look": to_json(node.previous),
                "clock": to_json(node.clock),
            }
            for node, row in zip(nodes, clocks.rows, strict=True)
        ],
        "findings": [one.to_json() for one in clocks.findings],
        "exit_code": clocks.exit_code,
    }
    if pairs:
        keys = ("a", "b", "a_ahead_s", "error_s")
        document["pairs"] = [dict(zip(keys, pair, strict=True)) for pair in all_pairs(clocks)]
    return document


def all_pairs(clocks: Clocks) -> list[Pair]:
    """Widest first."""
    pairs = [_pair(a, b) for a, b in itertools.combinations(_measured(clocks.rows), 2)]
    return sorted(pairs, key=lambda pair: -abs(pair.apart_s))
