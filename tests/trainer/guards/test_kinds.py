"""Kinds of a step come from the plan: the same whatever rank asks, mixtures included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor
from trainer.guards.guards import StepKinds, counted, kind_of

BUCKETS = Buckets.parse({"144p": {1: (1.0, 8), 51: (1.0, 2)}, "240p": {51: (1.0, 1)}})


def cell(kind: str, ratio: int = 0) -> int:
    return [n for n, bucket in enumerate(BUCKETS.cells) if kind_of(bucket) == kind][ratio]


def kinds(cells: list[int]) -> StepKinds:
    plan: Any = SimpleNamespace(
        buckets=BUCKETS, epoch=lambda _: SimpleNamespace(cells=np.array(cells, np.int64))
    )
    return StepKinds(plan)


def test_aspect_ratios_are_one_kind() -> None:
    every = kinds([cell("144p 51f", ratio) for ratio in range(4)])
    assert every.before(Cursor(0, 4), 4) == ("144p 51f",)


def test_a_step_is_what_all_its_ranks_have_before_the_cursor() -> None:
    image, short, tall = cell("144p 1f"), cell("144p 51f"), cell("240p 51f")
    every = kinds([image, image, short, tall, tall, tall])
    assert every.before(Cursor(0, 2), 2) == ("144p 1f",)
    assert every.before(Cursor(0, 4), 2) == ("144p 51f", "240p 51f")
    assert every.before(Cursor(0, 6), 4) == ("144p 51f", "240p 51f")
    assert every.before(Cursor(0, 0), 2) == ()  # of a rank without data: all end in this step


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["a"] * 8, ("a",)),
        (["a"] * 7 + ["b"], ("a", "b")),
        (["a"] * 8 + ["b"], ("a",)),
        (["b"] * 100 + ["a"] * 50 + ["c"] * 5, ("a", "b")),
        ([f"k{n:02d}" for n in range(20)], tuple(f"k{n:02d}" for n in range(20))),
        ([*(f"k{n:02d}" for n in range(20)), "k03"], ("k03",)),
        ([], ()),
    ],
)
def test_a_kind_counts_from_an_eighth_of_the_microbatches_on(
    parts: list[str], expected: tuple[str, ...]
) -> None:
    assert counted(parts) == counted(parts[::-1]) == expected
