"""clusterctl compare, on run directories that are written here."""

from __future__ import annotations

from pathlib import Path

from tests.clusterctl.compare.runs_of import steps, write, write_config
from tests.clusterctl.runs.attempts_of import three_attempts
from tests.interface.cases import case
from tests.interface.shell import Shell


def _runs() -> None:
    device = "NVIDIA H100 80GB HBM3"
    for number, seed, slower, rate in ((3, 1, 1.0, 1e-4), (4, 2, 1.08, 2e-4)):
        folder = write(
            Path(f"outputs/00{number}-demo"), steps(400, seed, slower=slower), device=device
        )
        write_config(folder, lr=rate, dtype="bf16")


@case("compare.good")
def good(shell: Shell) -> None:
    """Two runs, limits that are exceeded, kept and not known, a page."""
    _runs()
    shell.run("clusterctl compare 3 4")
    shell.run("clusterctl compare 3 4 --max-loss-increase 5% --max-slowdown 5% -q")
    shell.run("clusterctl compare 3 4 --max-loss-increase 0.1% -q")
    shell.run("clusterctl compare 3 4 --out curves.html -q")
    write(Path("outputs/005-demo"), steps(400, 1))
    shell.run("clusterctl compare 3 5 --max-loss-increase 0 --max-slowdown 0")


@case("compare.json")
def document(shell: Shell) -> None:
    """The document."""
    _runs()
    shell.run("clusterctl compare 3 4 --json --max-loss-increase 5% --max-slowdown 5%")


@case("compare.bad")
def bad(shell: Shell) -> None:
    """One run, the same twice, an unknown one, one without steps, nothing in common, restarts."""
    _runs()
    shell.run("clusterctl compare 3")
    shell.run("clusterctl compare 3 outputs/003-demo")
    shell.run("clusterctl compare 3 9")
    shell.run("clusterctl compare 3 4 --max-loss-increase much")
    Path("outputs/006-x").mkdir()
    Path("outputs/006-x/events.jsonl").touch()
    shell.run("clusterctl compare 3 6")
    write(Path("outputs/007-x"), steps(30, 1, first=900))
    shell.run("clusterctl compare 3 7 --max-loss-increase 1%")
    three_attempts().write(Path("outputs/008-x"))
    shell.run("clusterctl compare 8 3")
    shell.run("clusterctl compare 3 4 --out missing/page.html")
