"""What is measured on a card, the most valuable first: sixteen items, and more for a second call.

Seconds are estimates for an H100 with 16 cores. A limit is about twice of it: a phase that hangs
costs that much of the others' time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.gpu.items import (
    attention,
    ceilings,
    copies,
    correct,
    facts,
    kernels,
    media,
    steps,
    train,
)
from tests.gpu.report import is_row
from tests.gpu.run import MEASURED, WRONG, Options, Phase

QUEUES = ("1", "8")


def first(options: Options) -> list[Phase]:
    """The sixteen items, in their order."""
    return [
        Phase(1, "facts", facts.facts, (), 40.0, 4.0),
        Phase(2, "ceilings", ceilings.ceilings, (), 30.0, 5.0),
        Phase(3, "frames kernels", kernels.frames, (), 50.0, 6.0),
        Phase(4, "packed text", kernels.text, (), 20.0, 5.0),
        Phase(5, "correct, eager", correct.eager, (), 60.0, 8.0),
        Phase(6, "correct, compiled", correct.compiled, (), 110.0, 20.0),
        Phase(7, "engines", train.engines, (), 100.0, 15.0),
        _bench(8, "360p:51", "360p:51", warmup=3, steps=5, limit_s=60.0),
        Phase(9, "360p:51 profile", steps.profile, ("360p:51",), 40.0, 10.0),
        _bench(10, "360p:51 all recomputed", "360p:51", *steps.ALL, limit_s=50.0),
        _bench(11, "360p:102", "360p:102", limit_s=40.0),
        _bench(11, "144p:1", "144p:1", limit_s=40.0),
        _bench(12, "360p:51 compiled", "360p:51", *steps.ALL, *steps.COMPILED, limit_s=90.0),
        _bench(12, "360p:51 eager", "360p:51", *steps.ALL, *steps.EAGER, limit_s=40.0),
        _bench(12, "360p:51 lambda", "360p:51", path="lambda", limit_s=40.0),
        _bench(12, "360p:51 plain", "360p:51", path="plain", limit_s=40.0),
        *(
            Phase(
                13,
                f"copies beside steps, {count} queues",
                copies.beside_steps,
                (),
                50.0,
                12.0,
                {copies.VARIABLE: count},
            )
            for count in QUEUES
        ),
        Phase(14, "attention", attention.table, (), 60.0, 5.0),
        Phase(15, "T5-XXL", media.t5, (), 40.0, 10.0),
        Phase(15, "VAE", media.vae, (), 40.0, 10.0),
        Phase(16, "sampling", media.sampling, (), 40.0, 10.0),
    ]


def more(options: Options) -> list[Phase]:
    """For the time that the first call leaves."""
    kept = (*steps.NOTHING, *steps.COMPILED)
    return [
        _bench(17, "720p:1", "720p:1", limit_s=40.0),
        _bench(17, "1024:1", "1024:1", limit_s=40.0),
        _bench(17, "360p:51 fp8", "360p:51", "--fp8-linears", "true", limit_s=50.0),
        _bench(18, "360p:51 deterministic", "360p:51", "--deterministic", "true", limit_s=50.0),
        _bench(19, "360p:51 a tenth kept", "360p:51", *kept, activation_budget=0.1, limit_s=100.0),
        Phase(20, "save of XL/2", train.save, (), 150.0, 60.0),
        Phase(21, "products bit by bit", facts.repeated, (), 30.0, 10.0),
        Phase(21, "copies bit by bit", facts.copies, (), 20.0, 5.0),
        Phase(22, "SIGTERM", train.terminate, (), 60.0, 20.0),
        _bench(23, "720p:51", "720p:51", limit_s=50.0),
        _bench(23, "144p:51", "144p:51", limit_s=50.0),
    ]


def second(options: Options, before: Iterable[Mapping[str, Any]]) -> list[Phase]:
    """What the record `before` lacks or has failed at, then more. Wrong numbers stay wrong."""
    ended = {line["phase"]: line["result"] for line in before if is_row(line)}
    good = (MEASURED, WRONG)
    again = [one for one in first(options) if ended.get(one.name) not in good] if ended else []
    return [*again, *(one for one in more(options) if ended.get(one.name) not in good)]


def _bench(item: int, name: str, bucket: str, *words: str, limit_s: float, **how: Any) -> Phase:
    is_compiled = words[-len(steps.COMPILED) :] == steps.COMPILED
    least_s = 25.0 if is_compiled else 12.0
    return Phase(item, name, steps.bench, (bucket, *words), limit_s, least_s, {}, how)
