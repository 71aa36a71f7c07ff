"""The ways in which whole steps are run: an engine, and what runs the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.gpu.null import figures
from tests.gpu.null.processes import Card

PREDICTED = 0.03  # of the peak; the reserve of trainer.fits is 0.1
WAITS = 2  # a step: for the figures, which the null GPU counts as a copy and a wait
SHAPES = 45

# Single pictures, the lengths of clips, a batch of one.
_FEW = "144p:1,144p:51,360p:51,360p:102,360p:408,1080p:1"


@dataclass(frozen=True)
class Way:
    name: str
    words: tuple[str, ...]  # of `programs.steps`

    @property
    def is_compiled(self) -> bool:
        return "compiled" in self.name


# What the recipe has: as many clips at once as fit. Alone on its card a rank has all of the
# optimizer's state, so more passes than in a large run.
_AUTO = ("--grad-checkpoint", "auto")
_ALL = ("--grad-checkpoint", "all")
_COMPILED = ("--fused-blocks", "false", "--lines", _FEW)

WAYS = (
    Way("colossal, fused", ("--every-shape", "--engine", "colossal", *_AUTO)),
    Way("native, fused", ("--engine", "native", *_AUTO)),
    Way("colossal, recomputed", ("--engine", "colossal", "--lines", _FEW, *_ALL)),
    Way("native, recomputed", ("--engine", "native", "--lines", _FEW, *_ALL)),
    Way("native, compiled", ("--every-shape", "--engine", "native", *_COMPILED, *_ALL)),
    Way("colossal, compiled", ("--warm", _FEW, "--engine", "colossal", *_COMPILED, *_ALL)),
)


def check(gpu: Card, way: Way, **variables: str) -> dict[str, Any]:
    """What a run of it was. Fails where it launches, waits for, makes or holds what it should not."""
    found: dict[str, Any] = gpu.program("steps", *way.words, more=variables)
    assert found["refusal"] == ""
    assert found["devices"] == [0]
    warm, steps = found["warm-up"], found["steps"]
    assert warm["shapes"] <= SHAPES
    assert warm["all"] > 600 or "--warm" in way.words
    if "every shape" in found:
        later = found["every shape"]
        assert later["shapes"] == warm["all"]
        assert later["late"] == []
    faults = []
    for name, one in steps.items():
        made = {key: one[key] for key in ("programs", "graphs", "compiled", "missed") if one[key]}
        off = one["predicted_bytes"] / one["peak_bytes"] - 1
        if made:
            faults.append(f"{name}: made after the warm-up {made}")
        if abs(off) > PREDICTED:
            faults.append(f"{name}: {off:+.1%} of the peak is predicted wrong")
        if one["waits"] > WAITS:
            faults.append(f"{name}: the host waits {one['waits']} times")
        if one["kernels"].get("efficient attention"):
            faults.append(f"{name}: text is attended to with its padding")
    faults += figures.worse(figures.kept(), figures.of_steps(way.name, found))
    assert steps
    assert not faults, "\n".join(faults)
    return found
