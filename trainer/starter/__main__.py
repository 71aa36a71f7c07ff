"""Start a node's ranks: `python -m trainer.starter OPTIONS -m trainer.train CONFIG …`."""

from __future__ import annotations

import os
import sys

from trainer.config import sources
from trainer.starter import visible
from trainer.starter.agent_link import AgentLink
from trainer.starter.command import parse
from trainer.starter.preload import preload
from trainer.starter.program import Program
from trainer.starter.serve import Starter


def main() -> int | Program:
    arguments = sys.argv[1:]
    command = parse(arguments)
    visible.make_room()
    if "CLUSTERCTL_WORKDIR" in os.environ:  # an agent starts it in a folder without modules
        os.chdir(os.environ["CLUSTERCTL_WORKDIR"])
    given = dict(os.environ)  # imports may add to it
    link = AgentLink.from_environment()
    sources.imported()
    if command.preload:
        preload(command.preload, command.program.words)
    return Starter(arguments, command, link, given).serve()


if __name__ == "__main__":
    outcome = main()
    if isinstance(outcome, int):
        sys.exit(outcome)
    outcome.run()  # in a rank
