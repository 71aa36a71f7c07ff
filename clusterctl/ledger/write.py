"""What launch, preflight and exclude enter in the ledger of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.finding import Report, Verdict
from clusterctl.ledger.entries import CHECK, EXCLUDED, FAILED, INCIDENT, PASSED, RETURNED, Entry
from clusterctl.ledger.file import LedgerError, append, read

NO_FAULT = ("user-stop", "unknown")  # classes that say nothing about a node
PLANNED = ("node-stopped",)  # entered, and not counted against it
# What people do, or the program: entered, and not counted. SIGKILL and SIGTERM somebody sends; what
# the kernel ends for memory, and what goes wrong in start-up, has another class.
OF_PEOPLE = (
    *("signal-9", "signal-15", "signal-2", "signal-1", "oom-kernel", "port-taken", "worker-died"),
    "service-unreachable",
)
# Checks of what people install, mount, fill and run there.
_SET_UP = ("software.", "shell.", "storage.", "gpu.busy", "host.same_machine", "host.limits")
OF_LAUNCH = "launch."  # checks of what is to be launched
OF_LEDGER = "host.history"  # reads what is written here


def is_of_people(what: str) -> bool:
    """Whether a class of incidents or a check says nothing about the machine."""
    return what in OF_PEOPLE or what.startswith(_SET_UP)


def of_incident(
    cause: Mapping[str, Any], where: tuple[str, str, int], time_s: float
) -> Entry | None:
    """The root of an incident, as incidents.jsonl has it; None where it names no node.

    `where` is the name of the run directory, the run's id and the attempt.

    A root that is a consequence itself (`is_root` false: every rank blames another) names a victim.
    What the same input gives again on any node does not count against this one, nor does what
    people have done.
    """
    node, what = cause.get("node"), str(cause.get("class") or "")
    if not isinstance(node, str) or not cause.get("is_root") or what in NO_FAULT:
        return None
    evidence = cause.get("evidence")
    text = str(evidence.get("line") or "") if isinstance(evidence, Mapping) else ""
    counts = not cause.get("is_deterministic") and what not in PLANNED and not is_of_people(what)
    return Entry(node, INCIDENT, text, time_s, "launch", what, *where, counts=counts)


def of_exclusions(
    nodes: Iterable[tuple[str, str, float | None]], now_s: float, by: str, run: str = ""
) -> list[Entry]:
    """(node, reason, until) of nodes that were excluded."""
    return [
        Entry(node, EXCLUDED, reason, now_s, by, run=run, until_s=until_s)
        for node, reason, until_s in nodes
    ]


def of_returns(nodes: Iterable[tuple[str, str]], now_s: float, by: str) -> list[Entry]:
    """(node, reason for which it was excluded) of nodes that may be used again."""
    return [Entry(node, RETURNED, f"excluded for {why}", now_s, by) for node, why in nodes]


def of_checks(
    report: Report, known: Sequence[Entry], now_s: float, by: str = "preflight"
) -> list[Entry]:
    """Checks that fail on a node and did not before, and those that passed again.

    Not entered: checks of a launch line, what only follows from another failed check, and a check
    that fails on every node of several, which says nothing about one of them. A wrong set-up does
    not count. An UNKNOWN changes nothing.
    """
    failed: dict[tuple[str, str], str] = {}
    fine: set[tuple[str, str]] = set()
    for one in report.findings:
        if one.id.startswith(OF_LAUNCH) or one.id == OF_LEDGER:
            continue
        for node in one.nodes:
            if one.verdict is Verdict.FAIL:
                failed.setdefault((node, one.id), one.evidence)
            elif one.verdict in (Verdict.PASS, Verdict.WARN):
                fine.add((node, one.id))
    for one in report.findings:
        if one.because is not None:
            for node in [name for name in one.nodes if (name, one.because) in failed]:
                failed.pop((node, one.id), None)
    everywhere = {
        id
        for _, id in failed
        if len(report.nodes) > 1 and all((node, id) in failed for node in report.nodes)
    }
    before = {(one.node, one.what): one.state for one in known if one.kind == CHECK}
    found = [
        Entry(node, CHECK, text, now_s, by, id, state=FAILED, counts=not is_of_people(id))
        for (node, id), text in failed.items()
        if id not in everywhere and before.get((node, id)) != FAILED
    ]
    found += [
        Entry(node, CHECK, "", now_s, by, id, state=PASSED)
        for (node, id), state in before.items()
        if state == FAILED and (node, id) in fine and (node, id) not in failed
    ]
    return found


def enter(path: Path, entries: Sequence[Entry], hostfile: Path | None = None) -> str:
    """Append; why it could not be done, "" where it was."""
    try:
        append(path, entries, hostfile=hostfile)
    except LedgerError as error:
        return f"not entered in the history of nodes: {error}"
    return ""


def enter_checks(
    path: Path, report: Report, hostfile: Path, now_s: float, by: str = "preflight"
) -> str:
    """What a preflight found that is new; why it could not be entered, "" where it was."""
    try:
        known = read(path).entries
    except LedgerError as error:
        return f"not entered in the history of nodes: {error}"
    return enter(path, of_checks(report, known, now_s, by), hostfile)
