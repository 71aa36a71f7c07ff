"""clusterctl report, on a run directory of three attempts."""

from __future__ import annotations

from pathlib import Path

from tests.clusterctl.runs.attempts_of import three_attempts
from tests.interface.cases import case
from tests.interface.shell import Shell


@case("report.good")
def good(shell: Shell) -> None:
    """A page in the run directory, and elsewhere."""
    three_attempts().write(Path("outputs/003-STDiT3-XL-2"))
    shell.run("clusterctl report")
    shell.run("clusterctl report 3 --out page.html --json")


@case("report.bad")
def bad(shell: Shell) -> None:
    """No run, no folder to write to."""
    shell.run("clusterctl report")
    three_attempts().write(Path("outputs/003-STDiT3-XL-2"))
    shell.run("clusterctl report 4")
    shell.run("clusterctl report --out missing/page.html")
