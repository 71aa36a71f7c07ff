"""Measurements in new processes that are forked, because importing torch takes seconds."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.trainer import ranks

LIMIT_S = 3600  # a guard, not a measure


def results(
    work: Callable[..., object],
    arguments: Sequence[object],
    environments: Sequence[Mapping[str, str]],
) -> list[Any]:
    """Run `work` in one process for each environment, all at once; return what it returns there.

    Exits with the logs when one fails.
    """
    count = len(environments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            ranks.fork(
                _write, folder / f"{rank}.json", work, arguments,
                env=environment, log=folder / f"{rank}.log",
            )
            for rank, environment in enumerate(environments)
        ]  # fmt: skip
        codes = ranks.wait(processes, LIMIT_S)
        if codes != [0] * count:
            logs = [path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))]
            sys.exit("\n".join([*logs, f"{work.__name__} ended with {codes}"]))
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _write(out: Path, work: Callable[..., object], arguments: Sequence[object]) -> None:
    out.write_text(json.dumps(work(*arguments)))
