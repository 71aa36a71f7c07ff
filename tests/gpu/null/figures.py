"""Figures of the campaign that are kept in figures.json, and what got worse since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("figures.json")
WORSE = 0.02  # a part: what is more than that counts
# Of which less is better. Bytes and launches may move a little between versions of torch.
_LESS = (
    *("launches", "waits", "programs", "graphs", "shapes", "peak_bytes"),
    *("product_flops", "elementwise_bytes"),
)

Figures = dict[str, dict[str, Any]]  # of each configuration


def kept() -> Figures:
    return json.loads(FILE.read_text()) if FILE.is_file() else {}


_KEPT = ("launches", "waits", "peak_bytes", "product_flops", "elementwise_bytes", "kernels")


def of_steps(way: str, found: Mapping[str, Any]) -> Figures:
    """What `programs.steps` has found, by configuration: "colossal, fused, 360p:51 x 8"."""
    warm = {key: found["warm-up"][key] for key in ("shapes", "programs", "graphs")}
    return {f"{way}, warm-up": warm, **_rows(way, found["steps"])}


def of_trials(found: Mapping[str, Any]) -> Figures:
    """What `programs.trials` has found: "trial, all recomputed"."""
    return _rows("trial", found["trials"])


def _rows(way: str, found: Mapping[str, Any]) -> Figures:
    return {
        f"{way}, {name}": {key: one[key] for key in _KEPT if key in one}
        for name, one in found.items()
    }


def worse(before: Figures, now: Figures) -> list[str]:
    """Sentences: each figure that grew by more than WORSE, each configuration that figures.json lacks."""
    found = []
    for name, figures in now.items():
        if name not in before:
            found.append(f"{name}: not in figures.json")
            continue
        for key in _LESS:
            if key not in figures:
                continue
            old, new = before[name].get(key, 0), figures[key]
            if new > old * (1 + WORSE):
                found.append(f"{name}: {key} {new:,} instead of {old:,}")
    return found


def write(found: Figures) -> None:
    """Each configuration on a line, so that a change shows what it changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
