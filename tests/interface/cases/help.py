"""Every command's --help, and that of the trainer's tools."""

from __future__ import annotations

from clusterctl.cli import COMMANDS
from tests.interface.cases import case
from tests.interface.shell import Shell

TOOLS = (
    "train", "infer", "weights", "weights inspect", "weights convert", "bench", "evaluate", "evaluate videos", "pictures", "config", "checkpoint", "sync",
    "data", "data.digits",
)  # fmt: skip
VERBS = (
    "probe", "check", "filter", "merge", "difference", "intersect", "dedupe", "clean-captions", "convert", "shard",
    "stats", "encode", "features", "simulate", "examine",
)  # fmt: skip


def _help(name: str, line: str) -> None:
    def session(shell: Shell) -> None:
        shell.run(f"{line} --help")

    session.__doc__ = f"Help of {line}."
    case(f"{name}.help")(session)


_help("clusterctl", "clusterctl")
for _command in COMMANDS:
    _help(_command, f"clusterctl {_command}")
for _tool in TOOLS:
    _help(f"trainer.{_tool.replace(' ', '-')}", f"python -m trainer.{_tool}")
for _verb in VERBS:
    _help(f"trainer.data.{_verb}", f"python -m trainer.data {_verb}")
