"""The code is replaced in place while a run goes on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.clusterctl.launch.harness import parent
from tests.faults.fault import fault
from tests.faults.rig import CODE, Round, kill
from tests.faults.setting import Setting

OWN = Setting(own_code=True)
OTHER = "raise ImportError('this file is of the version that was installed meanwhile')\n"


def replace(folder: Path, names: tuple[str, ...]) -> None:
    """Every file is another one, as after `git pull` or `pip install`; nothing of it fits the old."""
    for name in names:
        for path in (folder / name).rglob("*.py"):
            part = path.with_suffix(".part")
            part.write_text(OTHER)
            part.replace(path)
        for kept in (folder / name).rglob("__pycache__"):
            shutil.rmtree(kept)


@fault(
    "F40-head", "all of the head's code is replaced, then a rank is killed", "signal-9", setting=OWN
)  # fmt: skip
def new_head(one: Round) -> None:
    one.until_step(23)
    replace(one.code, tuple(name for name in CODE if name != "trainer"))
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)


def one_version_of_each(one: Round) -> Iterable[str]:
    """All ranks of an attempt run what was there when it began."""
    seen = {(line["attempt"], line["code"]) for line in one.samples()}
    if seen != {(1, "first"), (2, "second")}:
        yield f"the versions of attempts are {sorted(seen)}"


def two_versions(one: Round) -> None:
    mark(one, "first")


def mark(one: Round, version: str) -> None:
    """The trainer's step is of this version."""
    path = one.code / "trainer" / "step.py"
    text = path.read_text().split("\nCAMPAIGN = ")[0]
    part = path.with_suffix(".part")
    part.write_text(f"{text}\nCAMPAIGN = {version!r}\n")
    part.replace(path)


@fault(
    "F40-node", "the trainer is replaced, then what starts the ranks of one node is killed",
    "signal-9", recovered_s=60.0, setting=OWN, prepare=two_versions,
    check=one_version_of_each,
)  # fmt: skip
def new_trainer(one: Round) -> None:
    one.until_step(23)
    mark(one, "second")
    victim = one.ranks[1]
    one.strike()
    kill([parent(victim), victim], signal.SIGKILL)
