"""Runs between two attempts: no process of theirs need be there, and their supervisor goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits, by its nodes or its supervisor. `text` says for what."""

    run: str
    run_dir: str
    head: str  # user, machine and process of its supervisor
    text: str
    attempt: int  # the last one
    since_s: float  # unix time
    nodes: tuple[str, ...] = ()  # that say so
    socket: Path | None = field(default=None, compare=False)  # of a supervisor of this machine

    @property
    def sentence(self) -> str:
        why = f": {self.text}" if self.text else ""
        return f"run {self.run} is between two attempts{why} (supervisor {self.head})"

    def to_json(self) -> dict[str, Any]:
        names = ("run", "run_dir", "head", "text", "attempt", "since_s")
        return {**{name: getattr(self, name) for name in names}, "nodes": list(self.nodes)}


def waiting_of(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Waiting]:
    """By run; `rows` are (node of the hostfile, what it says of a run that waits)."""
    found: dict[str, Waiting] = {}
    for node, row in rows:
        known = found.get(row["run"])
        nodes = (*(known.nodes if known else ()), node)
        facts = (row["run"], row["run_dir"], row["head"], row["text"], row["attempt"])
        found[row["run"]] = Waiting(*facts, row["since_s"], tuple(dict.fromkeys(nodes)))
    return list(found.values())
