"""clusterctl why, on run directories and recorded logs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.clusterctl.runs.attempts_of import Attempts
from tests.interface.cases import case
from tests.interface.shell import Shell

CAPTURES = Path(__file__).parents[2] / "captures" / "why"
RUN = Path("outputs/003-STDiT3-XL-2")


def _prepare() -> Attempts:
    """Attempt 1 lost a rank to a signal; in attempt 2 rank 1 raised an error."""
    run = Attempts()
    run.attempt()
    run.train(150)
    run.incident("signal-9")
    run.restart()
    run.attempt(after=100, nodes=("n1", "n3"))
    run.train(20)
    run.end(1, "rank 1 on n1: exit code 1")
    run.write(RUN)
    (RUN / "ranks").mkdir()
    for rank in range(3):
        text = (CAPTURES / "exception" / f"{rank}.log").read_text()
        path = RUN / "ranks" / f"{rank}.log"
        path.write_text(f"step 150\n--- attempt 2 ---\nHF_TOKEN=hf_abcdefghijklmnop\n{text}")
        os.utime(path, (1.79e9, 1.79e9))
    return run


@case("why.good")
def good(shell: Shell) -> None:
    """A run of two attempts, an attempt of it, JSON, what a bundle would hold, a run that is good."""
    run = _prepare()
    shell.run("clusterctl why")
    shell.run("clusterctl why 3 --attempt 1")
    shell.run("clusterctl why 3 --json")
    shell.run("clusterctl why 3 --bundle run3.tar.gz --dry-run")
    run.end(0)
    run.write(RUN)
    shell.run("clusterctl why")


@case("why.logs")
def logs(shell: Shell) -> None:
    """Logs that no launcher wrote: NCCL, out of memory, an error of which nobody knows the rank."""
    for name in ("nccl-ecc", "nccl-timeout", "two-errors", "torchrun-console"):
        shutil.copytree(CAPTURES / name, name)
        shell.run(f"clusterctl why --logs {name}")


@case("why.bad")
def bad(shell: Shell) -> None:
    """Runs, attempts, logs that are not there; options that do not go together; a file that exists."""
    shell.run("clusterctl why")
    _prepare()
    shell.run("clusterctl why 4")
    shell.run("clusterctl why --attempt 3")
    shell.run("clusterctl why --logs nowhere")
    Path("empty").mkdir()
    shell.run("clusterctl why --logs empty")
    shell.run("clusterctl why 3 --logs empty")
    shell.run("clusterctl why --force")
    Path("run3.tar.gz").touch()
    shell.run("clusterctl why --bundle run3.tar.gz")
    (RUN / "ranks" / "1.log").unlink()
    (RUN / "ranks" / "1.log").symlink_to("2.log")
    shell.run("clusterctl why")
