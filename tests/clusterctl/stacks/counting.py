"""Nodes that answer for NCCL and their GPUs, made up for the rules about counts."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any

from clusterctl.stacks.counts.rules_counts import explain
from clusterctl.stacks.judge import judge
from clusterctl.stacks.verdict import Verdict
from tests.clusterctl.stacks.made import Made, snapshot

SPINS, COMPUTES, IDLE = (100, 118.0), (98, 640.0), (0, 70.0)


def packed(text: str) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(text.encode())).decode()
    return {"text": data, "cut": False, "seconds": 0.1}


def places(ranks: int, per_node: int) -> list[tuple[str, int]]:
    """Address and process id of each rank, as `cluster` makes them."""
    return [(f"10.0.0.{rank // per_node + 1}", 1000 + rank % per_node) for rank in range(ranks)]


def answering(made: list[Made], *texts: str, silent: Iterable[int] = ()) -> list[Made]:
    """Nodes on which RAS gives these answers, one a sample."""
    for number, node in enumerate(made):
        refused = {"error": "127.0.0.1 port 28028: nothing listens there", "seconds": 0.0}
        sent = [refused] * 2 if number in set(silent) else [packed(text) for text in texts]
        node.more["counters"] = {
            "ras": sent, "addresses": [f"10.0.0.{number + 1}", "172.17.0.1"], "inner": {}, "gpus": None,
        }  # fmt: skip
    return made


def with_gpus(made: list[Made], uses: list[tuple[int, float]]) -> list[Made]:
    """`uses`: utilisation and power of each rank's GPU, in both readings."""
    for node in made:
        node.more.setdefault("counters", {"ras": [], "addresses": [], "inner": {}, "gpus": None})
        trainers = [row for row in node.rows if row["role"] == "trainer"]
        rows = [
            [index, *uses[row["rank"]], 700.0, 1980, [row["pid"]]]
            for index, row in enumerate(trainers)
        ]
        child = {"state": "ended", "rc": 0, "out": json.dumps([rows, rows]), "err": "", "seconds": 1.0}  # fmt: skip
        node.more["counters"]["gpus"] = child
    return made


def verdict(made: list[Made]) -> Verdict:
    shot = snapshot(*made)
    return explain(judge(shot), shot)


def named(found: Verdict) -> set[int | None]:
    return {suspect.rank for suspect in found.suspects}
