"""Whole steps of XL/2 whose blocks torch.compile makes, and their warm-up."""

from __future__ import annotations

import pytest

from tests.gpu.null.processes import Card
from tests.gpu.null.ways import WAYS, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_steps_launch_wait_and_hold_what_they_did(gpu: Card) -> None:
    """The second engine's process finds what the first has compiled."""
    first, second = (way for way in WAYS if way.is_compiled)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(gpu.place / "inductor")}
    made, found = (check(gpu, way, **own)["warm-up"] for way in (first, second))
    assert made["missed"] > 0
    assert found["graphs"] > 0
    assert (found["compiled"], found["missed"]) == (0, 0)
