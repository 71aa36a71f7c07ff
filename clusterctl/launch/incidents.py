"""incidents.jsonl: what ended or interrupted an attempt of a run, and what the supervisor did."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.launch import journal
from clusterctl.launch.causes.kinds import LOST, Cause, Kind
from clusterctl.launch.root_cause import Judgement
from clusterctl.payload.secrets.mask import hide_in

CRASH, HANG, NODE_LOST, STOP = "crash", "hang", "node-lost", "user-stop"
MOST_CONSEQUENCES = 32  # in one line; a large run loses hundreds of ranks at once


def type_of(root: Cause) -> str:
    """The type of an incident by its root."""
    if root.kind == Kind.HANG:
        return HANG
    if root.kind in LOST:
        return NODE_LOST
    return STOP if root.kind == Kind.USER_STOP else CRASH


@dataclass(frozen=True, slots=True)
class Incident:
    """One line of incidents.jsonl. `more` are keys of its type, such as the stacks of a hang."""

    text: str  # one sentence for people
    judgement: Judgement
    action: str  # what the supervisor did: "stopped the run", "restarted as attempt 2 on n[1-3]"
    step: int | None = None  # the last one
    attempt: int = 1
    time_s: float = field(default_factory=time.time)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Keys are only ever added (docs/reference/run-directory.md)."""
        root, others = self.judgement.root, self.judgement.consequences
        cause = root.to_json()
        return {
            "incident": type_of(root),
            "text": self.text,
            "time_s": self.time_s,
            "step": self.step,
            **self.more,
            "attempt": self.attempt,
            "action": self.action,
            **{name: cause[name] for name in ("class", "node", "rank", "evidence")},
            "root": cause,
            "consequences": [one.to_json() for one in others[:MOST_CONSEQUENCES]],
            "consequence_count": len(others),
        }


def record(
    log: journal.Journal, incident: Incident, redact: Callable[[str], str] = str
) -> dict[str, Any]:
    """Write an incident, and a crash to the journal as well, where dashboards see it.

    Returns its root as it was written: without secrets, which `redact` takes out of texts of ranks.
    A disk that is full must not keep a run from being stopped: it is written later.
    """
    line = hide_in(incident.to_json(), redact)
    root = incident.judgement.root
    if type_of(root) in (CRASH, NODE_LOST):
        data = {"class": root.name, "rank": root.rank, "action": incident.action}
        log.write("incident", redact(root.sentence), node=root.node, step=incident.step, **data)
    log.record(journal.INCIDENTS_FILE, line)
    written: dict[str, Any] = line["root"]
    return written
