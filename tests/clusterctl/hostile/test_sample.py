"""`clusterctl serve` beside a hostile node: the good one makes all, whatever the other says."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.remote.cluster import Cluster
from clusterctl.serve import sampler_pool, samplers, server
from clusterctl.serve.backlog import Follow, Plan
from clusterctl.serve.events import Events
from clusterctl.serve.presets import BUILT_IN
from clusterctl.serve.samplers import Samplers
from clusterctl.serve.source import LocalRun
from clusterctl.serve.wanted import Choice
from clusterctl.serve.work import SERVED
from tests.clusterctl.hostile.campaign import WHOLE, repeat
from tests.clusterctl.hostile.node import Orders, next_order
from tests.clusterctl.hostile.test_streams import LIMITS, both
from tests.clusterctl.serve import stand_in

LIFE_S, VIDEOS = 3.0, 12
EVILS = tuple(f"evil-{number}" for number in range(12))  # each is left at its first bad answer
FEW = [8, WHOLE]  # each takes a second or two of waiting


def sample(_: str, args: dict[str, Any], orders: Orders) -> Iterator[dict[str, Any]]:
    """A payload with one sampler, which makes empty files."""
    yield {"type": "hello", "slots": 1, "shared": [True] * len(args["tokens"]), "cache": "/c"}
    yield _said(ready="cpu")
    while (given := next_order(orders, 0.2)) is not None:
        yield {"type": "alive"}
        if "order" not in given or given["order"]["op"] == "end":
            continue
        order = given["order"]
        request, number = order["request"], order["id"]
        if order["op"] == "warm":
            yield _said(id=number, warm=True)
            continue
        place = Path(request["save_dir"])
        jobs = [
            {"file": f"sample_{n:04d}.mp4", "index": n, "finished": False}
            for n in range(len(request["prompts"]))
        ]
        if order["op"] == "look":
            yield _said(id=number, look={"batch_size": 2, "jobs": jobs})
        elif order["op"] == "make":
            yield _said(id=number, begun=True)
            place.mkdir(parents=True, exist_ok=True)
            for name in order["files"]:
                (place / name).touch()
            yield _said(id=number, made=order["files"])
        else:
            yield _said(id=number, sheet=True)


def _said(**answer: Any) -> dict[str, Any]:
    return {"type": "answer", "slot": 0, "answer": answer}


@pytest.mark.parametrize("times", FEW)
def test_sample(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((samplers, "SILENT_S"), (sampler_pool, "ORDER_S"), (server, "VISIBLE_S")):
        monkeypatch.setattr(module, name, 0.5)
    for name in ("PAUSE_S", "TICK_S", "OTHERS_S"):
        monkeypatch.setattr(server, name, 0.05)
    numbers = itertools.count()
    nodes = [Node(name) for name in ("good", *EVILS)]

    def work(rng: random.Random) -> None:
        run = stand_in.make_run(tmp_path / f"{next(numbers):03d}-run", (10,))
        source = LocalRun(run)
        source.start()
        source.close()
        preset = BUILT_IN["run"]
        prompts = {"run": [f"prompt {n}" for n in range(VIDEOS)]}
        plan = Plan([Follow(source, [preset], prompts, {})], Choice(), "ema", once=True)
        until = time.monotonic() + LIFE_S
        server.serve(
            plan,
            lambda claims: Samplers(
                Cluster(nodes, both(sample, rng, EVILS), LIMITS),
                {"tokens": [("", one.id) for one in claims.values()]},
                [one.folder for one in claims],
            ),
            Events(Output()),
            lambda *_, **__: None,
            lambda: time.monotonic() > until,
        )
        place = run / "samples/run/epoch0-global_step10"
        if (place / SERVED).exists():
            assert len(list(place.glob("sample_*.mp4"))) == VIDEOS

    repeat(times, "sample", work, LIFE_S + 5.0, most_mb=20 * len(EVILS))
