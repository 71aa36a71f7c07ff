"""The cause of a run that takes no step, from the verdict over the stacks of its ranks. Pure."""

from __future__ import annotations

from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.stacks import wait_sites
from clusterctl.stacks.model import Progress
from clusterctl.stacks.verdict import Suspect, Verdict, VerdictKind

_BY_VERDICT = {
    VerdictKind.DESYNC: "desync",
    VerdictKind.ALL_SAME: "collective",
    VerdictKind.DATA: "data",
    VerdictKind.WAITING: "storage",  # the others wait for a rank that saves
}


def of_verdict(verdict: Verdict | None, headline: str, nodes: int) -> Cause:
    """What hangs: data, collective, desync, storage, logger, stopped, spinning, or not known.

    `headline` says why there is no verdict where it is None; `nodes` are those of the run.
    """
    evidence = Evidence(Source.VERDICT, headline)
    if verdict is None:
        return Cause(Kind.HANG, evidence=evidence)
    suspect = verdict.suspects[0] if verdict.suspects else None
    node, rank = (suspect.node, suspect.rank) if suspect else (None, None)
    if suspect and suspect.proc is None and rank is None:
        return Cause(Kind.NODE_UNREACHABLE, "", node, None, evidence, is_of_node=True)
    detail = _BY_VERDICT.get(verdict.kind) or (_of_suspect(suspect) if suspect else "")
    places = {one.node for one in verdict.suspects}
    is_of_node = detail == "storage" and len(places) == 1 < nodes
    return Cause(Kind.HANG, detail, node, rank, evidence, is_of_node=is_of_node)


def _of_suspect(suspect: Suspect) -> str:
    proc = suspect.proc
    if proc is None:
        return ""  # a rank without a process
    if (
        proc.in_storage
        or proc.kind == wait_sites.Kind.STORAGE
        or (proc.saves and proc.state == "D")
    ):
        return "storage"
    if proc.role == "loader" or proc.kind == wait_sites.Kind.WAIT_DATA:
        return "data"
    if proc.kind == wait_sites.Kind.LOG:
        return "logger"
    if proc.state == "T" or proc.is_frozen:
        return "stopped"
    if proc.kind in wait_sites.WAITS_FOR_PEERS:
        return "collective"
    if proc.saves:
        return "storage"
    return "spinning" if proc.progress == Progress.SPINNING else ""
