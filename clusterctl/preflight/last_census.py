"""The head's record of each node from the previous run: clock and error counters, by boot.

One JSON file in the state folder of the user; a missing or broken one means that nothing is known.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.facts import Fabric, Maybe, NodeFacts, Previous, Unknown, or_none, then
from checks.parsers.clock import finite
from checks.parsers.infiniband import ERROR_COUNTERS
from clusterctl.nodes import Node
from trainer.runlog.atomic_file import write_whole

KEEP_S = 90 * 86400.0


def default_path() -> Path:
    """$XDG_STATE_HOME/clusterctl/last-look.json."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "clusterctl" / "last-look.json"


def compare(
    path: Path, nodes: Sequence[Node], facts: Sequence[NodeFacts]
) -> tuple[tuple[NodeFacts, ...], OSError | None]:
    """The facts of `nodes` with the record of the previous run, which they then replace.

    Returns also the error that kept the record from being written.
    """
    seen, now_s = _load(path), time.time()
    kept = {key: data for key, data in seen.items() if _age_s(data, now_s) < KEEP_S}
    compared = []
    for node, one in zip(nodes, facts, strict=True):
        key = f"{node.name} {node.address}:{node.port or 22}"
        compared.append(dataclasses.replace(one, previous=_previous(seen.get(key), now_s)))
        if one.unreached is None and not isinstance(one.machine, Unknown):
            kept[key] = _record(one, one.machine.boot_id, now_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"schema": 1, "nodes": kept}))
    except OSError as error:
        return tuple(compared), error
    return tuple(compared), None


def _load(path: Path) -> dict[str, Any]:
    """All that is remembered, by `name address:port`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        nodes = data["nodes"] if data.get("schema") == 1 else {}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return {}
    return nodes if isinstance(nodes, dict) else {}


def _age_s(data: Any, now_s: float) -> float:
    """Infinite, where the record does not say."""
    try:
        return now_s - finite(data["time_s"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return math.inf


def _previous(data: Any, now_s: float) -> Previous | Unknown:
    try:
        wall = data["wall_minus_boot_s"]
        return Previous(
            boot_id=str(data["boot_id"]),
            wall_minus_boot_s=finite(wall) if wall is not None else Unknown("not known then"),
            counters={
                str(port): {str(name): int(value) for name, value in values.items()}
                for port, values in data["counters"].items()
            },
            age_s=max(0.0, now_s - finite(data["time_s"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Unknown("no look before")


def _record(facts: NodeFacts, boot_id: Maybe[str], now_s: float) -> dict[str, Any]:
    ports = facts.fabric.ports if isinstance(facts.fabric, Fabric) else ()
    return {
        "boot_id": or_none(boot_id) or "",
        "wall_minus_boot_s": or_none(then(facts.clock, lambda clock: clock.wall_minus_boot_s)),
        "counters": {
            port.name: {k: v for k, v in port.counters.items() if k in ERROR_COUNTERS}
            for port in ports
        },
        "time_s": now_s,
    }
