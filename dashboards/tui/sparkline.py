"""The small curve of a node: a minute of it is drawn once, only the newest part at every tick.

History lies in chunks that never change, so the text of a chunk is kept as long as it is asked for.
A character is two readings and keeps them: the curve moves by whole characters, without flicker.
"""

from __future__ import annotations

import functools
import math

from dashboards.model.fleet import Metric, node_column, silent_rows
from dashboards.model.ring_buffer import CHUNK, column_of
from dashboards.model.state import NodeState, State
from dashboards.tui.braille import Scale, spark

_KEPT = 8192  # chunks; five of each of 1,000 nodes are on a screen at most
assert CHUNK % 2 == 0, "a character would reach over the end of a chunk"


def node_spark(node: NodeState, metric: Metric, width: int, state: State, scale: Scale) -> str:
    """The metric up to now in `width` characters of two readings; blank where nothing came."""
    column, ring = node_column(node, metric), node.history
    newest = column_of(ring.tail, ring.width, ring.code, column)
    text = spark(newest + [math.nan] * min(2 * width, silent_rows(node, state)), scale)
    for chunk in reversed(ring.chunks):
        if len(text) >= width:
            break
        text = _chunk_spark(chunk, ring.width, ring.code, column, scale.low, scale.high) + text
    return text[len(text) - width :] if len(text) > width else text.rjust(width)


@functools.lru_cache(_KEPT)
def _chunk_spark(chunk: bytes, width: int, code: str, column: int, low: float, high: float) -> str:
    return spark(column_of(chunk, width, code, column), Scale(low, high))
