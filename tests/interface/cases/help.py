"""Every command's --help."""

from __future__ import annotations

from clusterctl.cli import COMMANDS
from tests.interface.cases import case
from tests.interface.shell import Shell


def _help(line: str, about: str) -> None:
    words = line.replace("python -m ", "").replace("clusterctl ", "").replace(" ", ".")

    def session(shell: Shell) -> None:
        shell.run(f"{line} --help")

    session.__doc__ = about
    case(f"{words}.help" if words != "clusterctl" else "clusterctl.help")(session)


_help("clusterctl", "The list of commands.")
for _command in COMMANDS:
    _help(f"clusterctl {_command}", f"Help of clusterctl {_command}.")
