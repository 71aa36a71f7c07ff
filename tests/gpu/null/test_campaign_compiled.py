"""Whole steps of XL/2 whose blocks torch.compile makes, and their warm-up."""

from __future__ import annotations

import pytest

from tests.gpu.null.processes import Card
from tests.gpu.null.ways import WAYS, Way, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMPILED = [way for way in WAYS if way.is_compiled]


@pytest.mark.parametrize("way", COMPILED, ids=lambda way: way.name.replace(", ", "-"))
def test_steps_launch_wait_and_hold_what_they_did(gpu: Card, way: Way) -> None:
    check(gpu, way)


def test_a_second_process_finds_what_torch_has_compiled(gpu: Card) -> None:
    """The first one is the test above of this way, or a campaign before."""
    (way,) = (way for way in COMPILED if way.name == "native, compiled")
    words = [word for word in way.words if word != "--every-shape"]
    words[words.index("--lines") + 1] = "none"
    found = gpu.program("steps", *words)["warm-up"]
    assert found["graphs"] > 0
    assert (found["compiled"], found["missed"]) == (0, 0)
