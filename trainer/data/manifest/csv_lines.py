"""Columns of Arrow as lines of a csv, byte for byte as Python's csv module writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def header(names: Sequence[str]) -> bytes:
    return lines(pa.RecordBatch.from_pydict({name: [_cell(name)] for name in names}), names)


def lines(batch: pa.RecordBatch, names: Sequence[str]) -> bytes:
    """Lines with these columns, which are texts; those that the batch lacks are empty."""
    nothing = pa.nulls(batch.num_rows, pa.binary())
    cells = [_quoted(batch[name]) if name in batch.schema.names else nothing for name in names]
    joined = pc.binary_join_element_wise(
        *cells, b",", null_handling="replace", null_replacement=b""
    )
    if len(names) == 1:  # an empty line is not a row
        joined = pc.if_else(pc.equal(joined, b""), b'""', joined)
    return b"\r\n".join(joined.to_pylist()) + b"\r\n"


def _quoted(texts: pa.Array) -> pa.Array:
    cells = texts.cast(pa.binary())
    data = cells.buffers()[2].to_pybytes()
    if not any(sign in data for sign in b',"\r\n'):  # of numbers, mostly
        return cells
    inside = pc.replace_substring(cells, b'"', b'""')
    quoted = pc.binary_join_element_wise(b'"', inside, b'"', b"")
    return pc.if_else(pc.match_substring_regex(cells, '[,"\r\n]'), quoted, cells)


def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Values of any types as texts, in bytes."""
    cells = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
    arrays = [pa.array(column, pa.binary()) for column in cells]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _cell(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (list, dict)):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return b"" if value is None else str(value).encode("utf-8", "surrogateescape")
