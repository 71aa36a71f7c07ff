"""Columns of a csv as typed columns of a parquet file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.table_io import (
    ArrowBatch,
    Batch,
    CsvBatch,
    Table,
    column_type,
    first_line,
    numbers,
)

_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")  # no leading zeros: 007 is a name


def guess_types(
    table: Table, progress: Callable[[float], None] = lambda share: None
) -> dict[str, str]:
    """int64, double or string for each column that is not one of ours, from all of its cells.

    Reads the table to its end and goes back to where it was.
    """
    at = table.position
    kinds = {name: "int64" for name in table.names if column_type(name) is None}
    seen: set[str] = set()  # columns with a cell that is not empty
    while (batch := table.read(8192)) is not None:
        for name, kind in kinds.items():
            if kind == "string":
                continue
            cells = [text for text in batch.column(name) if text]
            if cells:
                seen.add(name)
            if kind == "int64" and not all(_WHOLE.fullmatch(text) for text in cells):
                kind = "double"
            if kind == "double" and not all(_is_number(text) for text in cells):
                kind = "string"
            kinds[name] = kind
        progress(table.share)
    table.wrong.clear()  # they are found again
    table.seek(at)
    return {name: kind if name in seen else "string" for name, kind in kinds.items()}


def _is_number(text: str) -> bool:
    if re.fullmatch(r"-?0\d+", text) or "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def schema_of(names: Sequence[str], kinds: dict[str, str]) -> Any:
    """Schema of a parquet file made from a csv."""
    named = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}
    return pa.schema(
        [pa.field(name, column_type(name) or named[kinds.get(name, "string")]) for name in names]
    )


def to_schema(batch: Batch, schema: Any) -> tuple[Any, list[WrongRow]]:
    """Rows as Arrow data of a schema, and those that do not fit into it."""
    if isinstance(batch, ArrowBatch):
        arrays = [_cast(batch, field) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema), []
    chosen = batch.select(schema.names)
    assert isinstance(chosen, CsvBatch)
    wrong: list[WrongRow] = []
    keep = np.ones(len(chosen), bool)
    columns = []
    for field in schema:
        values = chosen.column(field.name)
        cells: Any
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            cells, bad = _numbers(values, pa.types.is_integer(field.type))
            what = "is not an integer" if pa.types.is_integer(field.type) else "is not a number"
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            cells, bad, what = values, _not_utf8(values), "is not UTF-8"
        else:  # of another table: empty where a row of a csv has none
            cells, bad, what = [None if value == "" else value for value in values], [], ""
        for place in bad:
            if keep[place]:
                keep[place] = False
                shown = repr(values[place])[:60]
                wrong.append(WrongRow(chosen.lines[place], f"{field.name} {shown} {what}"))
        columns.append(cells)
    places = np.flatnonzero(keep).tolist()
    arrays = [
        _array([cells[place] for place in places], field)
        for cells, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), wrong


def common_field(one: Any, two: Any) -> Any:
    """A field that holds a column of two tables. Raises ManifestError."""
    kinds = (one.type, two.type)
    if all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds):
        return pa.field(one.name, pa.large_string())
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        raise ManifestError(
            f"column {one.name!r} is {one.type} in one table and {two.type} in another"
        )
    whole = all(pa.types.is_integer(kind) for kind in kinds)
    return pa.field(one.name, pa.int64() if whole else pa.float64())


def _cast(batch: ArrowBatch, field: Any) -> Any:
    """A column as the schema has it; null in every row where the batch has none."""
    if field.name not in batch.names:
        return pa.nulls(len(batch), field.type)
    array = batch.data.column(field.name)
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise _unfit(field, array.type, error) from None


def _array(cells: list[Any], field: Any) -> Any:
    try:
        return pa.array(cells, field.type)
    except (pa.ArrowException, TypeError):  # dates come from another table as texts
        try:
            return pa.array(cells).cast(field.type)
        except pa.ArrowException as error:
            raise _unfit(field, "text", error) from None


def _unfit(field: Any, kind: Any, error: BaseException) -> ManifestError:
    return ManifestError(
        f"column {field.name!r} is {kind} and cannot be written as {field.type}: "
        f"{first_line(error)}"
    )


def _numbers(values: Sequence[Any], whole: bool) -> tuple[list[Any], list[int]]:
    """Values as numbers, None for an empty cell, and the places of those that are none."""
    found = numbers([("nan" if value in ("", None) else value) for value in values])
    empty = np.array([value in ("", None) for value in values], bool)
    if whole:
        fits = np.isfinite(found) & (found == np.floor(found)) & (np.abs(found) < 2.0**63)
        cells = [
            None if blank else _whole(value) if good else 0
            for value, blank, good in zip(values, empty, fits, strict=True)
        ]
        return cells, np.flatnonzero(~fits & ~empty).tolist()
    named = np.array(
        [str(value).strip().lower() in ("nan", "+nan", "-nan") for value in values], bool
    )
    bad = np.isnan(found) & ~empty & ~named
    cells = [None if blank else value for value, blank in zip(found.tolist(), empty, strict=True)]
    return cells, np.flatnonzero(bad).tolist()


def _whole(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        return int(float(value))  # 51.0


def _not_utf8(values: Sequence[Any]) -> list[int]:
    bad = []
    for place, value in enumerate(values):
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                bad.append(place)
    return bad
