"""Whole steps of XL/2 for every line of the recipe's stages, by both engines, and their warm-up."""

from __future__ import annotations

import pytest

from tests.gpu.null import figures
from tests.gpu.null.processes import Card
from tests.gpu.null.ways import WAYS, Way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PREDICTED = 0.03  # of the peak; the reserve of trainer.fits is 0.1
COMPILED = 0.06  # what torch.compile keeps is not known from shapes
WAITS = 2  # a step: for the figures, which the null GPU counts as a copy and a wait
SHAPES = 45


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name.replace(", ", "-"))
def test_steps_launch_wait_and_hold_what_they_did(gpu: Card, way: Way) -> None:
    found = gpu.program("steps", *way.words)
    assert found["refusal"] == ""
    assert found["devices"] == [0]
    warm, steps = found["warm-up"], found["steps"]
    assert warm["shapes"] <= SHAPES
    assert warm["all"] > 600
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
        if abs(off) > (COMPILED if "compiled" in way.name else PREDICTED):
            faults.append(f"{name}: {off:+.1%} of the peak is predicted wrong")
        if one["waits"] > WAITS:
            faults.append(f"{name}: the host waits {one['waits']} times")
        if one["kernels"].get("efficient attention"):
            faults.append(f"{name}: text is attended to with its padding")
    faults += figures.worse(figures.kept(), figures.of_steps(way.name, found))
    assert steps
    assert not faults, "\n".join(faults)


def test_a_second_process_compiles_nothing_and_is_faster(gpu: Card) -> None:
    own = {
        "TRITON_CACHE_DIR": str(gpu.place / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(gpu.place / "inductor"),
    }
    words = ("steps", "--lines", "none", "--engine", "colossal")
    first, second = (gpu.program(*words, more=own)["warm-up"] for _ in range(2))
    assert first["compiled"] > 10
    assert second["compiled"] == 0
    assert second["programs"] == first["programs"]
    assert second["seconds"] < first["seconds"] / 2


def test_a_second_process_finds_what_torch_has_compiled(gpu: Card) -> None:
    """The first one is the test above of this way, or a campaign before."""
    (way,) = (way for way in WAYS if way.name == "native, compiled")
    words = [word for word in way.words if word != "--every-shape"]
    words[words.index("--lines") + 1] = "none"
    found = gpu.program("steps", *words)["warm-up"]
    assert found["graphs"] > 0
    assert (found["compiled"], found["missed"]) == (0, 0)
