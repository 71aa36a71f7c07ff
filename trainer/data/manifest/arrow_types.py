"""Types of Arrow for the columns of a parquet file that is written, and SQL for their values."""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from trainer.data.manifest.database import Database
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.sql import Source, unescaped
from trainer.data.manifest.table_io import column_type, first_line, is_text

_WHOLE = "-?(0|[1-9][0-9]{0,17})"  # no leading zeros: 007 is a name


def fields_of(database: Database, source: Source, names: Sequence[str]) -> list[pa.Field]:
    """Fields of columns: a parquet file's own; of a csv, where the column is not one of ours,
    int64, double or string, as all of its cells are."""
    if source.schema is not None:
        return [source.schema.field(name) for name in names]
    types = {name: column_type(name) for name in names}
    unknown = [name for name, kind in types.items() if kind is None]
    tests = []
    for name in unknown:
        cell = source.text(name)
        is_whole = f"regexp_full_match({cell}, '{_WHOLE}')"
        is_real = (
            f"(TRY_CAST({cell} AS DOUBLE) IS NOT NULL AND NOT contains({cell}, '_') "
            f"AND NOT regexp_full_match({cell}, '-?0[0-9]+'))"
        )
        is_all = [f"bool_and({cell} = '' OR {test})" for test in (is_whole, is_real)]
        tests.append(
            f"CASE WHEN bool_and({cell} = '') THEN 'string' WHEN {is_all[0]} THEN 'int64' "
            f"WHEN {is_all[1]} THEN 'double' ELSE 'string' END"
        )
    found = database.all(f"SELECT {', '.join(tests)} FROM {source.view}")[0] if tests else ()
    types |= zip(unknown, map(pa.type_for_alias, found), strict=True)
    return [pa.field(name, types[name]) for name in names]


def value(source: Source, one: pa.Field) -> str:
    """SQL for a column of a source as a type of Arrow; parquet's own type is cast by Arrow."""
    if one.name not in source.names:
        return "''" if is_text(one.type) else "NULL"
    if not source.is_csv:
        return source.column(one.name)
    text = source.text(one.name)
    number = source.number(one.name)
    if pa.types.is_integer(one.type):  # a cast to BIGINT alone would round 51.5
        is_whole = f"{number} = floor({number}) AND abs({number}) < 9223372036854775808"
        return f"CASE WHEN {is_whole} THEN TRY_CAST({text} AS BIGINT) END"
    if pa.types.is_floating(one.type):
        return number
    return text if is_text(one.type) else f"nullif({text}, '')"


def misfit(source: Source, fields: Sequence[pa.Field]) -> str:
    """SQL for place and text of a csv row's first cell that does not fit: 2:many; else null."""
    cases = []
    for place, one in enumerate(fields):
        if one.name not in source.names or (is_text(one.type) and not source.is_escaped):
            continue
        cell = source.text(one.name)
        test = f"{cell} NOT IN ('', '0/0') AND {value(source, one)} IS NULL"
        if is_text(one.type):
            test = f"regexp_matches({cell}, '[\\x{{10FF80}}-\\x{{10FFFF}}]')"
        cases.append(f"WHEN {test} THEN '{place}:' || {cell}")
    return f"CASE {' '.join(cases)} END" if cases else "NULL"


def misfit_reason(fields: Sequence[pa.Field], found: str) -> str:
    """What `misfit` has found, in words."""
    place, _, cell = found.partition(":")
    one = fields[int(place)]
    what = "UTF-8" if is_text(one.type) else "a number"
    if pa.types.is_integer(one.type):
        what = "an integer"
    return f"{one.name} {repr(unescaped(cell))[:60]} is not {what}"


def check_cells(database: Database, source: Source, names: Sequence[str]) -> None:
    """Raise ManifestError for a cell that does not fit where no row can be left out for it."""
    if not source.is_csv:
        return
    fields = fields_of(database, source, names)
    wrong = database.all(
        f"SELECT * FROM (SELECT row_number() OVER () - 1, {misfit(source, fields)} AS found "
        f"FROM {source.view}) WHERE found IS NOT NULL LIMIT 1"
    )
    for row, found in wrong:
        raise ManifestError(
            f"{source.path}: line {source.lines([row])[row]}: {misfit_reason(fields, found)}",
            hint="correct it, or write a csv",
        )


def common(one: pa.Field, two: pa.Field) -> pa.Field:
    """A field that holds a column of two tables. Raises ManifestError."""
    kinds = (one.type, two.type)
    if kinds[0] == kinds[1]:
        return one
    if all(map(is_text, kinds)):
        return pa.field(one.name, pa.large_string())
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        raise ManifestError(
            f"column {one.name!r} is {one.type} in one table and {two.type} in another"
        )
    is_whole = all(map(pa.types.is_integer, kinds))
    return pa.field(one.name, pa.int64() if is_whole else pa.float64())


def cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column as the schema has it; null in every row where the batch has none."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    array = batch.column(field.name)
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise ManifestError(
            f"column {field.name!r} is {array.type} and cannot be written as {field.type}: "
            f"{first_line(error)}"
        ) from None
