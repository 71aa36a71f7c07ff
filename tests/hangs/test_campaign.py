"""What counts as named, as unsure, as wrong, and as not measured."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hangs.campaign import judged
from tests.hangs.faults import FAULTS


def verdict(kind: str, confidence: str, *suspects: tuple[int | None, str]) -> dict[str, Any]:
    named = [{"rank": rank, "role": None if what == "node" else what, "what": what} for rank, what in suspects]  # fmt: skip
    return {"kind": kind, "confidence": confidence, "sentence": "", "suspects": named}


@pytest.mark.parametrize(
    ("fault", "said", "result"),
    [
        ("worker stopped", verdict("hang", "high", (1, "loader")), "named"),
        ("worker stopped", verdict("hang", "low", (1, "loader")), "unsure"),
        ("worker stopped", verdict("hang", "high", (2, "loader")), "wrong"),
        ("worker stopped", verdict("hang", "high", (1, "loader"), (2, "trainer")), "wrong"),
        ("worker stopped", verdict("hang", "low"), "unsure"),
        ("worker stopped", verdict("no-answer", "low", (None, "node")), "-"),
        ("long save", verdict("waiting", "medium"), "named"),
        ("none", verdict("moving", "medium"), "named"),
        ("none", verdict("busy", "low"), "named"),
        ("none", verdict("hang", "low"), "wrong"),
        ("none", verdict("no-answer", "low", (None, "node")), "-"),
    ],
)
def test_who_has_to_be_named(fault: str, said: dict[str, Any], result: str) -> None:
    assert judged(FAULTS[fault], 1, said)[0] == result
