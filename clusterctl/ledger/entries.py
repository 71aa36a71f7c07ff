"""What happened to a node, as a line of the cluster's ledger `node-history.jsonl`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.dataclass_json import Misshapen, decode
from clusterctl.node_name import NodeName
from trainer.runlog.json_file import object_of

FILE = "node-history.jsonl"
VERSION = 1
KINDS = ("incident", "check", "excluded", "returned", "note", "repair")
INCIDENT, CHECK, EXCLUDED, RETURNED, NOTE, REPAIR = KINDS
FAILED, PASSED = "failed", "passed"
MOST_TEXT = 500  # characters
LATEST_S = 1e11


@dataclass(frozen=True, slots=True)
class Entry:
    """`what` is the class of an incident or the id of a check; `by` a person or program."""

    node: NodeName
    kind: str
    text: str
    time_s: float  # unix time
    by: str = ""
    what: str = ""
    run: str = ""  # name of the run directory, which another folder may have as well
    run_id: str = ""
    attempt: int | None = None
    state: str = ""  # of a check: failed or passed
    counts: bool = False  # towards "failed again and again": what another node may not have
    until_s: float | None = None  # of an exclusion

    def line(self) -> bytes:
        """One line of JSON with its end; texts are cut to 500 characters."""
        data = {key: value for key, value in asdict(self).items() if value not in (None, "", False)}
        data["text"] = self.text[:MOST_TEXT]
        return json.dumps({"version": VERSION, **data}).encode() + b"\n"

    @property
    def sentence(self) -> str:
        """`incident xid-79 in 003-demo, attempt 2: NVRM: Xid 79`."""
        about = f"{self.kind} {self.what}".strip()
        about += f" {self.state}" if self.state else ""
        about += f" in {self.run}" if self.run else ""
        about += f", attempt {self.attempt}" if self.attempt is not None else ""
        about += f" until {stamp(self.until_s)}" if self.until_s is not None else ""
        about += f" by {self.by}" if self.by else ""
        return f"{about}: {self.text}" if self.text else about

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "time": stamp(self.time_s)}


def path_beside(hostfile: Path) -> Path:
    """The ledger of a cluster: beside its hostfile and exclude.toml."""
    return hostfile.with_name(FILE)


def stamp(unix_s: float) -> str:
    """A time in UTC: 2026-03-01T08:00:00Z."""
    return datetime.fromtimestamp(int(unix_s), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def entry_of(line: bytes) -> Entry | None:
    """None for a line that is torn, of another version, or holds what no entry can."""
    data = object_of(line)
    if data.get("version") != VERSION:
        return None
    try:
        entry = decode(Entry, {**data, "counts": data.get("counts") is True})
    except Misshapen:
        return None
    is_timed = all(0 <= one < LATEST_S for one in (entry.time_s, entry.until_s or 0.0))
    return entry if is_timed and entry.kind in KINDS else None


def of_nodes(entries: Iterable[Entry], names: Iterable[str] | None, since_s: float) -> list[Entry]:
    """Those of some nodes, None for all, from a time on."""
    chosen = None if names is None else set(names)
    return [
        one for one in entries if one.time_s >= since_s and (chosen is None or one.node in chosen)
    ]
