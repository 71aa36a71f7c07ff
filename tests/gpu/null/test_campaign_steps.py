"""Whole steps of XL/2 for every line of the recipe's stages, by both engines, and their warm-up."""

from __future__ import annotations

import pytest

from tests.gpu.null.processes import Card
from tests.gpu.null.ways import WAYS, Way, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BY_OURS = [way for way in WAYS if not way.is_compiled]


@pytest.mark.parametrize("way", BY_OURS, ids=lambda way: way.name.replace(", ", "-"))
def test_steps_launch_wait_and_hold_what_they_did(gpu: Card, way: Way) -> None:
    check(gpu, way)


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
