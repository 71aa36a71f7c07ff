"""The command line of the starter: its options are torchrun's, then comes the program."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.starter.program import Program

_EXAMPLES = """\
example: python -m trainer.starter --nnodes 2 --node_rank 0 --nproc_per_node 8 \\
           --master_addr node-1 --master_port 29500 -m trainer.train stage1
Type the same on the second node with --node_rank 1."""


@dataclass(frozen=True)
class Command:
    """The ranks of a node: numbers, where all ranks meet, and what each runs."""

    program: Program
    nodes: int = 1
    node_rank: int = 0
    slots: int = 1  # ranks on this node
    first_rank: int = 0
    world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 29500
    preload: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)  # variables that differ between attempts

    def variables(self, local_rank: int) -> dict[str, str]:
        """What torch and the trainer expect of a launcher."""
        numbers = {
            "RANK": self.first_rank + local_rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.slots,
            "GROUP_RANK": self.node_rank,
            "NODE_RANK": self.node_rank,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
        }
        return {**{name: str(value) for name, value in numbers.items()}, **self.more}


def parse(words: Sequence[str], more: dict[str, str] | None = None) -> Command:
    """Options up to `-m MODULE` or the first other word. Exits with code 2 on a mistake."""
    parser = _parser()
    valued = {name for action in parser._actions if action.nargs != 0 for name in action.option_strings}  # fmt: skip
    end = 0
    while end < len(words) and words[end] != "-m" and words[end].startswith("-"):
        end += 2 if words[end] in valued else 1
    found = parser.parse_args(words[:end])
    program = tuple(words[end:])
    if len(program) < (2 if program[:1] == ("-m",) else 1):
        parser.error("there is no program: -m MODULE or a file comes after the options")
    first, world = found.node_rank * found.nproc_per_node, found.nnodes * found.nproc_per_node
    return Command(
        Program(program),
        found.nnodes,
        found.node_rank,
        found.nproc_per_node,
        first if found.first_rank is None else found.first_rank,
        world if found.world_size is None else found.world_size,
        found.master_addr,
        found.master_port,
        tuple(found.preload),
        more or {},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m trainer.starter",
        usage="%(prog)s [OPTIONS] -m MODULE [ARGUMENTS] | FILE [ARGUMENTS]",
        description="Start the ranks of a node, wait for them; exit code 1 if one fails.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nnodes", type=int, default=1, help="number of nodes; default 1")
    add("--node_rank", type=int, default=0, help="number of this node, from 0; default 0")
    add("--nproc_per_node", type=int, default=1, help="ranks on this node; default 1")
    add("--first_rank", type=int, help="default: as if all nodes have as many ranks as this one")
    add("--world_size", type=int, help="ranks of all nodes; default as for --first_rank")
    add("--master_addr", default="127.0.0.1", help="address of rank 0's node; default 127.0.0.1")
    add("--master_port", type=int, default=29500, help="default 29500")
    add("--preload", action="append", default=[], metavar="MODULE", help="import it before forking")
    return parser
