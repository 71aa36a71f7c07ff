"""What `clusterctl why --logs` says of logs: of ranks that crash now, and recorded ones of NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.causes.state import CRASH, NOT_MEASURED, WELL, Answer, result
from tests.clusterctl.why import crashing_ranks

REPO = Path(__file__).parents[2]
RECORDED = REPO / "tests" / "captures" / "why"
# name: (class of the first cause, its ranks); "" where logs alone do not tell who was first
LIVE = {
    name: ("", ()) if kind == "unknown" else (kind, ranks)
    for name, (kind, ranks) in crashing_ranks.SCENARIOS.items()
    if kind
}
NCCL = {
    "nccl-ecc": ("cuda-error", (1,)),
    "nccl-oom": ("cuda-oom", (3,)),
    "nccl-network": ("", ()),  # all ranks blame another one
}


def why(folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "clusterctl", "why", "--logs", str(folder), "--json"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def crashed(folder: Path, name: str, kind: str, ranks: Sequence[int]) -> Answer:
    found = why(folder)
    cause = found["cause"]
    if cause is None:
        return Answer(CRASH, name, result(not kind, False), f"cannot tell: {found['why_not']}")
    named = {cause["rank"]} if cause["rank"] is not None else set(found["ranks"])
    of = f"rank {cause['rank']}" if cause["rank"] is not None else f"ranks {found['ranks']}"
    said = f"{cause['class']}, {of}: {cause['evidence']['line'][:90]}"
    is_right = cause["class"] == kind and named == set(ranks)
    return Answer(CRASH, name, result(is_right, bool(named - set(ranks)) or not kind), said)


def crashes(*, is_recorded: bool) -> Iterator[Answer]:
    """`is_recorded`: by the logs of such ranks that were kept, in seconds instead of minutes."""
    for name, (kind, ranks) in LIVE.items():
        if is_recorded:
            yield crashed(RECORDED / name, f"{name} (recorded)", kind, ranks)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                crashing_ranks.run(Path(folder), name)
            except subprocess.TimeoutExpired:
                late = f"ranks did not end within {crashing_ranks.WAIT_S:g} s"
                yield Answer(CRASH, name, NOT_MEASURED, late)
                continue
            yield crashed(Path(folder), name, kind, ranks)
    for name, (kind, ranks) in NCCL.items():
        yield crashed(RECORDED / name, f"{name} (recorded)", kind, ranks)


def well(folder: Path, name: str) -> Answer:
    found = why(folder)
    is_named = found["cause"] is not None
    said = f"{found['state']}: {found['why_not']}"
    return Answer(WELL, name, result(True, is_named), str(found["cause"]) if is_named else said)


def healthy() -> Iterator[Answer]:
    """Logs of ranks that ended well, and of ranks that survived an error."""
    for name in ("survived", "well"):
        with tempfile.TemporaryDirectory() as folder:
            codes = crashing_ranks.run(Path(folder), name)
            assert not any(codes.values()), f"{name}: {codes}"
            yield well(Path(folder), f"logs of ranks, {name}")
