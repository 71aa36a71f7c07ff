"""clusterctl plan-checkpoints, on run directories that tests write and on configs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterctl.checkpoints.on_disk import FreeSpace
from clusterctl.errors import UsageError
from tests.clusterctl.checkpoints.run_directories import BEGAN, Run, failing_run
from tests.interface.cases import case
from tests.interface.shell import Shell
from trainer.errors import TrainerError

RUN = "clusterctl plan-checkpoints outputs/001-STDiT3-demo"
GB = 10**9


def _in_process(words: Sequence[str]) -> dict[str, Any]:
    """What the trainer answers, without a second Python that imports torch."""
    from trainer.checkpoint.sizes import predicted_size
    from trainer.config.load import load, to_dict

    try:
        config = load(words[2], words[4:])
    except TrainerError as error:
        raise UsageError(str(error), hint=error.hint) from None
    if words[0] == "trainer.config":
        return {"config": to_dict(config)}
    size = predicted_size(config)
    names = ("model_bytes", "ema_bytes", "optimizer_bytes", "extra_bytes")
    return {name: getattr(size, name) for name in names}


def _prepare(shell: Shell, free: int = 500 * GB) -> None:
    """A disk of 1 TB, and a moment shortly after the runs' last records."""
    own = "clusterctl.checkpoints"
    shell.patches.setattr(f"{own}.settings_of_run.ask", _in_process)
    shell.patches.setattr(
        f"{own}.subject.free_space", lambda _: FreeSpace(Path("/data"), free, 1000 * GB)
    )
    shell.patches.setattr("clusterctl.commands.plan_checkpoints.time.time", lambda: BEGAN + 4000)


@case("plan-checkpoints.good")
def good(shell: Shell) -> None:
    """A run with failures on record, one that has just begun, one that is over."""
    _prepare(shell)
    failing_run(Path("outputs/001-STDiT3-demo"))
    shell.run(RUN)
    shell.run(f"{RUN} -v --mtbf 6 --save-stall 2 --step-time 4")
    shell.run(f"{RUN} -q")
    young = Run(Path("outputs/002-STDiT3-demo"), began_s=BEGAN + 3900)
    young.start()
    young.train(20)
    shell.run("clusterctl plan-checkpoints outputs/002-STDiT3-demo")
    shell.run("clusterctl plan-checkpoints outputs/002-STDiT3-demo --all-runs -q")
    young.save()
    young.event("done")
    shell.run("clusterctl plan-checkpoints")


@case("plan-checkpoints.config")
def config(shell: Shell) -> None:
    """A config before the start: with its length and step time, and without."""
    _prepare(shell)
    line = "clusterctl plan-checkpoints stage1 --ranks 192"
    shell.run(f"{line} --steps 2210 --step-time 9.5")
    shell.run(f"{line} --steps 2210 --step-time 9.5 --keep-checkpoints 3 --keep-every 500")
    shell.run(f"{line} --step-time 9.5 --ckpt-at-epoch-end --keep-checkpoints 3")
    shell.run(line)


@case("plan-checkpoints.bad")
def bad(shell: Shell) -> None:
    """Checkpoints that do not fit, failures without recovery, free space that is unknown."""
    _prepare(shell, free=GB // 10)
    failing_run(Path("outputs/001-STDiT3-demo"))
    shell.run(f"{RUN} --steps 9000")
    shell.run(f"{RUN} --steps 9000 -q --mtbf 0.01")

    def hangs(_folder: Path) -> FreeSpace:
        raise OSError(116, "Stale file handle")

    shell.patches.setattr("clusterctl.checkpoints.subject.free_space", hangs)
    shell.run(f"{RUN} -q")


@case("plan-checkpoints.json")
def as_json(shell: Shell) -> None:
    """As JSON: a run, and a config without a step time."""
    _prepare(shell)
    failing_run(Path("outputs/001-STDiT3-demo"))
    shell.run(f"{RUN} --steps 9000 --json")
    shell.run("clusterctl plan-checkpoints stage1 --json")


@case("plan-checkpoints.usage")
def usage(shell: Shell) -> None:
    """Names that are neither a run nor a config, options that are none, numbers that are none."""
    _prepare(shell)
    failing_run(Path("outputs/001-STDiT3-demo"), times=1)
    shell.run("clusterctl plan-checkpoints outputs/001-STDiT3-demo/ranks")
    shell.run("clusterctl plan-checkpoints --outputs missing")
    shell.run("clusterctl plan-checkpoints --mtfb 3")
    shell.run(f"{RUN} --ckpt-every 50")
    shell.run(f"{RUN} --mtbf 0")
    shell.run(f"{RUN} --steps many")
    shell.write("outputs/001-STDiT3-demo/config.json", "{}")
    shell.run(RUN)
