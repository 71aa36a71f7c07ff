"""The head's record of each node from the last look: clock and error counters, by boot.

One JSON file in the user's state folder, rewritten as a whole. Checks find more with it and need
it for nothing: a file that is missing or broken means that there was no last look.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.facts import Fabric, NodeFacts, Previous, Unknown
from checks.parsers.infiniband import ERROR_COUNTERS
from clusterctl.nodes import Node

KEEP_S = 90 * 86400.0


def default_path() -> Path:
    """$XDG_STATE_HOME/clusterctl/last-look.json."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "clusterctl" / "last-look.json"


def load(path: Path) -> dict[str, Any]:
    """All that is remembered, by `name address:port`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        nodes = data["nodes"] if data.get("schema") == 1 else {}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return {}
    return nodes if isinstance(nodes, dict) else {}


def key_of(node: Node) -> str:
    return f"{node.name} {node.address}:{node.port or 22}"


def previous(seen: Mapping[str, Any], node: Node, now_s: float) -> Previous | Unknown:
    """The last look at a node."""
    try:
        data = seen[key_of(node)]
        wall = data["wall_minus_boot_s"]
        return Previous(
            boot_id=str(data["boot_id"]),
            wall_minus_boot_s=_finite(wall) if wall is not None else Unknown("not known then"),
            counters={
                str(port): {str(name): int(value) for name, value in values.items()}
                for port, values in data["counters"].items()
            },
            age_s=max(0.0, now_s - _finite(data["time_s"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Unknown("no look before")


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a time")
    return number


def remember(
    path: Path, seen: Mapping[str, Any], looks: Iterable[tuple[Node, NodeFacts]]
) -> OSError | None:
    """Write what is known now over what was; returns the error that kept it from being written."""
    now_s = time.time()
    kept = {key: data for key, data in seen.items() if _is_recent(data, now_s)}
    for node, facts in looks:
        machine, clock = facts.machine, facts.clock
        if facts.unreached is not None or isinstance(machine, Unknown):
            continue
        wall = clock if isinstance(clock, Unknown) else clock.wall_minus_boot_s
        ports = facts.fabric.ports if isinstance(facts.fabric, Fabric) else ()
        kept[key_of(node)] = {
            "boot_id": machine.boot_id if isinstance(machine.boot_id, str) else "",
            "wall_minus_boot_s": None if isinstance(wall, Unknown) else wall,
            "counters": {
                port.name: {k: v for k, v in port.counters.items() if k in ERROR_COUNTERS}
                for port in ports
            },
            "time_s": now_s,
        }
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({"schema": 1, "nodes": kept}), encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        return error
    return None


def compare(path: Path, nodes: Sequence[Node], facts: Sequence[NodeFacts]) -> tuple[NodeFacts, ...]:
    """The facts of `nodes` with the record of the last look at each, which they then replace."""
    seen, now_s = load(path), time.time()
    compared = tuple(
        dataclasses.replace(one, previous=previous(seen, node, now_s))
        for node, one in zip(nodes, facts, strict=True)
    )
    remember(path, seen, zip(nodes, compared, strict=True))
    return compared


def _is_recent(data: Any, now_s: float) -> bool:
    try:
        return now_s - _finite(data["time_s"]) < KEEP_S
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
