"""192 ranks of which all stacks agree: NCCL's counts and the load of GPUs, replayed for the rules.

No card is here: the answers have the layout of NCCL's own sources (ras_answers.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.causes.state import HANG, WELL, Answer, result
from tests.clusterctl.stacks.counting import (
    COMPUTES,
    IDLE,
    SPINS,
    answering,
    named,
    places,
    verdict,
    with_gpus,
)
from tests.clusterctl.stacks.made import Made, cluster
from tests.clusterctl.stacks.ras_answers import Comm, as_json

NODES, PER_NODE = 24, 8
RANKS = NODES * PER_NODE
GUILTY = 77
PROMPT = [("interact", "/usr/lib/python3.11/code.py", "code.py", 10)]


def counted(*counts: int, behind: int = 0, stacks: list[tuple[str, str, str, int]] | None = None) -> list[Made]:  # fmt: skip
    """The nodes, with the number of all-reduces of each look; rank GUILTY has `behind` fewer."""

    def text(count: int) -> str:
        all_of_them = [{"AllReduce": count - behind * (rank == GUILTY)} for rank in range(RANKS)]
        return as_json([Comm(0x27A0, all_of_them, places(RANKS, PER_NODE))])

    own = dict.fromkeys(range(RANKS), stacks) if stacks else None
    return answering(cluster(NODES, PER_NODE, 0, own), *map(text, counts))


def hangs() -> Iterator[Answer]:
    spinning = [IDLE] * RANKS
    spinning[GUILTY] = SPINS
    states = {
        "NCCL: a rank never launched": (with_gpus(counted(700, 700, behind=1), [SPINS] * RANKS), GUILTY),
        "NCCL: a kernel spins on a node": (with_gpus(counted(700, 700), spinning), GUILTY),
        "NCCL: frozen, all counts equal": (with_gpus(counted(700, 700), [SPINS] * RANKS), None),
    }  # fmt: skip
    for name, (made, rank) in states.items():
        found = verdict(made)
        who = named(found)
        is_right = who == ({rank} if rank is not None else set()) and found.exit_code == 1
        if rank is None:
            is_right = is_right and "frozen, with equal counts" in found.sentence
        wrong = bool(who - {rank})
        yield Answer(HANG, name, result(is_right, wrong), f"{found.kind}: {found.sentence}")


def healthy() -> Iterator[Answer]:
    states = {
        "NCCL: a constant difference that moves": counted(700, 703, behind=1),
        "NCCL: a long kernel, GPUs compute": with_gpus(counted(700, 700), [COMPUTES] * RANKS),
        "NCCL: idle at a prompt": with_gpus(counted(700, 700, stacks=PROMPT), [IDLE] * RANKS),
    }
    for name, made in states.items():
        found = verdict(made)
        is_wrong = bool(found.suspects) or found.exit_code == 1
        yield Answer(WELL, name, result(True, is_wrong), f"{found.kind}: {found.sentence}")
