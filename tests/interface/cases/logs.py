"""clusterctl logs, on a run directory of three attempts."""

from __future__ import annotations

from pathlib import Path

from tests.clusterctl.runs.attempts_of import three_attempts
from tests.dashboards.runs import journal
from tests.interface.cases import case
from tests.interface.shell import Shell

RUN = Path("outputs/003-STDiT3-XL-2")


def _prepare() -> None:
    three_attempts().write(RUN)
    (RUN / "ranks").mkdir()
    for rank in range(4):
        parts = [f"attempt {number}, line {line} of rank {rank}\n" for number in (1, 2) for line in range(3)]  # fmt: skip
        parts[3:3] = ["--- attempt 2 ---\n"]
        (RUN / "ranks" / f"{rank}.log").write_text("".join(parts))
    (RUN / "ranks" / "starter-n1.log").write_text("WANDB_API_KEY=sesame starter \x1b]0;x\x07\n")


@case("logs.good")
def good(shell: Shell) -> None:
    """The last lines, an attempt, a node, JSON, a run that is over."""
    _prepare()
    shell.run("clusterctl logs --tail 1")
    shell.run("clusterctl logs 3 --rank 0,2-3 --attempt 1")
    shell.run("clusterctl logs outputs --node n1 --tail 2")
    shell.run("clusterctl logs 003-STDiT3-XL-2 --rank 1 --json")
    shell.run("clusterctl logs --since 2020-01-01 --rank 3")
    journal(RUN, "end", "all ranks have ended well", 1.8e9, data={"exit_code": 0})
    shell.run("clusterctl logs -f --rank 1 --tail 1")


@case("logs.bad")
def bad(shell: Shell) -> None:
    """Runs, ranks, nodes and attempts that are not there, times that are not known, a link."""
    shell.run("clusterctl logs")
    _prepare()
    shell.run("clusterctl logs 4")
    shell.run("clusterctl logs --rank 9")
    shell.run("clusterctl logs --rank 0,9 --tail 1")
    shell.run("clusterctl logs --node n9")
    shell.run("clusterctl logs --attempt 4")
    shell.run("clusterctl logs --since '2026-11-21 14:05:30' --rank 0")
    shell.run("clusterctl logs --since later")
    shell.run("clusterctl logs --rank five")
    (RUN / "ranks" / "0.log").unlink()
    (RUN / "ranks" / "0.log").symlink_to("1.log")
    shell.run("clusterctl logs --rank 0")
