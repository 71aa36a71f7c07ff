"""The ways in which whole steps are run: an engine, and what runs the blocks."""

from __future__ import annotations

from dataclasses import dataclass

# Of the compiled ways: single pictures, the lengths of clips, a batch of one.
_FEW = "144p:1,144p:51,360p:102,360p:408,1080p:1"


@dataclass(frozen=True)
class Way:
    name: str
    words: tuple[str, ...]  # of `programs.steps`


# All recomputed: one pass a step, whatever the card has room for.
_ALL = ("--grad-checkpoint", "all")
_COMPILED = ("--fused-blocks", "false", "--lines", _FEW)

WAYS = (
    Way("colossal, fused", ("--every-shape", "--engine", "colossal", *_ALL)),
    Way("native, fused", ("--engine", "native", *_ALL)),
    Way("native, compiled", ("--every-shape", "--engine", "native", *_COMPILED, *_ALL)),
)
