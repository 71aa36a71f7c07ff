"""A nvidia-smi for PATH that prints captures: the driver is the one thing that cannot be had."""

from __future__ import annotations

import re
import shlex
import sys
import time
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


def details(gpus: str, *, change: dict[int, dict[str, str]] | None = None) -> str:
    """`nvidia-smi -q` of the GPUs of a CSV: the capture's blocks under their bus ids.

    `change` replaces values by position: {3: {"Link Width/Current": "8x"}}, keys as
    `Section/Name` of the last two levels.
    """
    head, *blocks = re.split(r"^(?=GPU 0000)", capture("h100-sxm-x8.q.txt"), flags=re.MULTILINE)
    rows = _rows(gpus)
    if not rows:
        return gpus
    text = [re.sub(r"(Attached GPUs +: )\d+", rf"\g<1>{len(rows)}", head)]
    for position, row in enumerate(rows):
        block = re.sub(r"^GPU \S+", f"GPU {row[4]}", blocks[position % len(blocks)])
        block = re.sub(r"^GPU \S+", f"GPU {row[4]}", block)
        for key, value in (change or {}).get(position, {}).items():
            block = _replace(block, key, value)
        text.append(block)
    return re.sub(r"(Driver Version +: )\S+", rf"\g<1>{rows[0][3]}", "".join(text))


def _rows(gpus: str) -> list[list[str]]:
    """Cells of the GPUs in a CSV, which may have a header and sentences around them."""
    rows = [line.split(", ") for line in gpus.splitlines()]
    return [row for row in rows if len(row) > 6 and row[0].isdigit()]


def _replace(block: str, key: str, value: str) -> str:
    parent, _, name = key.rpartition("/")
    inside, lines = not parent, []
    done = False
    for line in block.splitlines(keepends=True):
        words = line.strip().partition(" : ")[0].strip()
        if parent and words == parent:
            inside = True
        elif inside and not done and words == name and " : " in line:
            line = line[: line.index(" : ") + 3] + value + "\n"
            done = True
        lines.append(line)
    assert done, f"the capture has no {key}"
    return "".join(lines)


def nvlinks(gpus: str, inactive: dict[int, list[int]] | None = None) -> str:
    """`nvidia-smi nvlink -s` with 18 links each; some inactive by GPU."""
    lines = []
    for row in _rows(gpus):
        lines.append(f"GPU {row[0]}: {row[2]} (UUID: {row[1]})")
        off = (inactive or {}).get(int(row[0]), [])
        lines += [f"\t Link {n}: {'<inactive>' if n in off else '26.562 GB/s'}" for n in range(18)]
    return "\n".join(lines) + "\n"


def holders(mib: dict[int, object]) -> str:
    """`--query-compute-apps=pid,used_memory --format=csv,nounits` of processes by id."""
    lines = [f"{pid}, {size}" for pid, size in mib.items()]
    return "\n".join(["pid, used_gpu_memory [MiB]", *lines]) + "\n"


def kernel_line(text: str, age_s: float = 60.0) -> str:
    """A line of this machine's kernel log that was written so long ago."""
    return f"[{time.clock_gettime(time.CLOCK_BOOTTIME) - age_s:12.6f}] {text}\n"


def install(
    directory: Path,
    gpus: str,
    apps: str | None = None,
    *,
    rc: int = 0,
    err: str = "",
    hang: bool = False,
    log: str = "[    0.000000] Linux version 6.8\n",
    change: dict[int, dict[str, str]] | None = None,
    inactive: dict[int, list[int]] | None = None,
) -> dict[str, str]:
    """Put a nvidia-smi and a dmesg into `directory`; returns an environment that finds them first."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "gpus": gpus,
        "apps": capture("no-processes.apps.csv") if apps is None else apps,
        "details": details(gpus, change=change),
        "links": nvlinks(gpus, inactive),
        "topo": (CAPTURES.parent / "topo" / "topo-m.h100x8-no-nic.txt").read_text(),
        "log": log,
    }
    for name, text in texts.items():
        (directory / f"{name}.txt").write_text(text)

    def show(name: str) -> str:
        return f"cat {shlex.quote(str(directory / name))}.txt;;"

    script = [
        "#!/bin/sh",
        # What hangs in a driver ignores signals as long as it can.
        "trap '' TERM HUP INT; sleep 600; sleep 600" if hang else "",
        'case "$*" in',
        f"*query-compute-apps*) {show('apps')}",
        f"-q) {show('details')}",
        f"nvlink*) {show('links')}",
        f"topo*) {show('topo')}",
        f"*) {show('gpus')}",
        "esac",
        f"printf %s {shlex.quote(err)} >&2",
        f"exit {rc}",
    ]
    write_tool(directory / "nvidia-smi", "\n".join(filter(None, script)))
    # The real log is that of the machine that runs the tests.
    write_tool(directory / "dmesg", f"#!/bin/sh\ncat {shlex.quote(str(directory / 'log.txt'))}")
    python = str(Path(sys.executable).parent)
    return {"PATH": f"{directory}:{python}:/usr/local/bin:/usr/bin:/bin"}


def install_torch(directory: Path, cuda: str = "12.8") -> dict[str, str]:
    """A torch by name, built for a CUDA; returns an environment in which an interpreter sees it."""
    (directory / "torch").mkdir(parents=True, exist_ok=True)
    (directory / "torch-2.9.0.dist-info").mkdir(exist_ok=True)
    (directory / "torch" / "version.py").write_text(f"cuda = {cuda!r}\n")
    return {"PYTHONPATH": str(directory)}


def write_tool(path: Path, text: str) -> None:
    path.write_text(text + "\n")
    path.chmod(0o755)
