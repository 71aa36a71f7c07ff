"""What compilers have made in this process: programs loaded, dynamo's graphs, compiler runs."""

from __future__ import annotations

from typing import Any

from torch._dynamo.utils import counters as dynamo
from triton import knobs

from tests.gpu.null import counters


class Compilers:
    """Counts from now on. A program that comes from Triton's folder is loaded, not compiled."""

    def __init__(self) -> None:
        self._compiled = 0
        knobs.compilation.listener = self._heard

    def _heard(self, *, cache_hit: bool, **_more: Any) -> None:
        self._compiled += not cache_hit

    def counts(self) -> dict[str, int]:
        """Of the whole process: programs loaded, graphs of dynamo, those that Triton compiled, and
        those that inductor did not find in its folder."""
        graphs = dynamo["stats"]["unique_graphs"]
        missed = dynamo["inductor"]["fxgraph_cache_miss"]
        found = {"programs": counters.own().programs, "graphs": graphs}
        return found | {"compiled": self._compiled, "missed": missed}

    def since(self, before: dict[str, int]) -> dict[str, int]:
        return {name: count - before[name] for name, count in self.counts().items()}
