"""Whole steps of XL/2 whose blocks torch.compile makes, and their warm-up."""

from __future__ import annotations

import pytest

from tests.gpu.null.processes import Card
from tests.gpu.null.ways import WAYS, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_steps_launch_wait_and_hold_what_they_did(gpu: Card) -> None:
    """The second engine finds most of what the first has compiled."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(gpu.place / "inductor")}
    first, second = (check(gpu, way, **own)["warm-up"] for way in WAYS if way.is_compiled)
    assert second["missed"] < first["missed"]


def test_a_second_process_finds_what_torch_has_compiled(gpu: Card) -> None:
    own = {"TORCHINDUCTOR_CACHE_DIR": str(gpu.place / "inductor")}
    words = ("steps", "--engine", "native", "--fused-blocks", "false")
    few = ("--lines", "none", "--warm", "144p:1")
    first, second = (gpu.program(*words, *few, more=own)["warm-up"] for _ in range(2))
    assert first["graphs"] == second["graphs"] > 0
    assert first["missed"] > 0
    assert (second["compiled"], second["missed"]) == (0, 0)
