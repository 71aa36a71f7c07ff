"""A nvidia-smi for PATH that prints captures: the driver is the one thing that cannot be had."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

CAPTURES = Path(__file__).parent / "nvidia-smi"
HEADER = (CAPTURES / "h100-sxm-x8.gpus.csv").read_text().splitlines()[0]


def capture(name: str) -> str:
    return (CAPTURES / name).read_text()


def h100(count: int = 8, *, power: str | None = None, busy: bool = False) -> str:
    """Rows of the first `count` GPUs of the capture; `busy` as in training, 700 W and memory full."""
    rows = capture("h100-sxm-x8.gpus.csv").splitlines()
    for index, row in enumerate(rows[1:], 1):
        cells = row.split(", ")
        if busy:
            cells[5], cells[7], cells[9] = "698.30 W", "71204 MiB", "100 %"
        if power is not None:
            cells[5] = power
        rows[index] = ", ".join(cells)
    return "\n".join(rows[: count + 1]) + "\n"


def install(
    directory: Path,
    gpus: str,
    apps: str | None = None,
    *,
    rc: int = 0,
    err: str = "",
    hang: bool = False,
) -> dict[str, str]:
    """Put a nvidia-smi into `directory`; returns an environment whose PATH finds it first."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "gpus.txt").write_text(gpus)
    (directory / "apps.txt").write_text(capture("no-processes.apps.csv") if apps is None else apps)
    script = [
        "#!/bin/sh",
        # What hangs in a driver ignores signals as long as it can.
        "trap '' TERM HUP INT; sleep 600; sleep 600" if hang else "",
        'case "$*" in',
        f"*query-compute-apps*) cat {shlex.quote(str(directory / 'apps.txt'))};;",
        f"*) cat {shlex.quote(str(directory / 'gpus.txt'))};;",
        "esac",
        f"printf %s {shlex.quote(err)} >&2",
        f"exit {rc}",
    ]
    tool = directory / "nvidia-smi"
    tool.write_text("\n".join(filter(None, script)) + "\n")
    tool.chmod(0o755)
    python = str(Path(sys.executable).parent)
    return {"PATH": f"{directory}:{python}:/usr/local/bin:/usr/bin:/bin"}
