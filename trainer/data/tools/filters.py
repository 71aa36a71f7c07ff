"""`filter`: the rows that meet every condition, in their order.

python -m trainer.data filter manifest.csv good.csv --min-frames 52 --min-resolution 360p --checked
python -m trainer.data filter scored.csv best.csv --where 'vmaf >= 2.5' --where 'text !~ logo'
python -m trainer.data filter all.csv some.csv --where "lang IN ('en', 'de') OR length(text) > 99"

An empty cell meets no condition but `column == ` and `column != x`. A row with a cell that cannot
be compared (a word where a number belongs) is left out and listed. ~ and !~ search for a regular
expression of Python. In SQL, texts are in single quotes, and an empty or wrong cell of a column of
numbers is NULL.
"""
# ruff: noqa: S608 - columns are numbered or quoted; --where is one expression, run without files

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.arrow_types import fields_of, value
from trainer.data.manifest.columns import require
from trainer.data.manifest.database import Database
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.rewrite import Rewrite, Rows, rewriting
from trainer.data.manifest.row_check import floats
from trainer.data.manifest.sql import Source, escaped, identifier, quoted, unescaped
from trainer.data.manifest.table_io import first_line
from trainer.data.tools.check import COLUMN, GOOD
from trainer.data.tools.probe import SIZE

_ORDER = ("<", "<=", ">", ">=")
_CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|==|!=|!~|<|>|~)\s*(.*?)\s*", re.DOTALL)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Patterns that Python and RE2 read alike; others run in Python.
_PLAIN_PATTERN = re.compile(r"(?!.*\(\?)[A-Za-z0-9 _,;:'\"<>=/@#%&!~.*+|^()\[\]-]*")
_KEPT = 1 << 14  # above the numbers of conditions

# option name -> column; each has a --min- and a --max- form
BOUNDS = {
    "frames": "num_frames",
    "height": "height",
    "width": "width",
    "resolution": "resolution",
    "fps": "fps",
    "aspect": "aspect_ratio",
    "size": SIZE,
}
_HELP = {
    "resolution": "resolution (height x width) in pixels, or a name: 720p",
    SIZE: "file_size in bytes, or 50M, 1G",
}


@dataclass(frozen=True)
class Condition:
    """`column` `sign` `value`: an order of numbers, equality, or a regular expression (~, !~)."""

    column: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> Condition | None:
        """None for SQL. Raises ManifestError for a missing column and a value that is wrong."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            return None
        condition = cls(*found.groups())
        column, value = condition.column, condition.value
        if value.startswith("'") or not (column in names or column.isidentifier()):
            return None
        if condition.sign in _ORDER and math.isnan(condition.number):
            is_column = value.casefold() in map(str.casefold, names)
            if is_column or not value.isidentifier():
                return None
            raise ManifestError(f"--where {text!r}: {value!r} is not a number")
        if condition.sign in ("~", "!~"):
            try:
                re.compile(value)
            except re.error as error:
                raise ManifestError(f"--where {text!r}: {error}") from None
        return condition

    @property
    def number(self) -> float:
        """The value as a number, NaN when it is none."""
        return float(floats([self.value])[0])

    def result(self, database: Database, source: Source) -> str:
        """SQL for whether the condition holds; null where it cannot be decided."""
        text, number = source.text(self.column), source.number(self.column)
        if self.sign in _ORDER:
            return (
                f"CASE WHEN {number} IS NULL OR isnan({number}) "
                f"THEN CASE WHEN {text} = '' THEN false END "
                f"ELSE {number} {self.sign} {_double(self.number)} END"
            )
        if self.sign in ("~", "!~"):
            if _PLAIN_PATTERN.fullmatch(self.value):
                holds = f"regexp_matches({text}, {quoted(self.value)})"
            else:
                holds = f"{database.python_pattern(self.value)}({text})"
        else:
            holds = f"{text} = {quoted(escaped(self.value))}"
            if not math.isnan(self.number):  # 24 is 24.0
                holds = f"({holds} OR coalesce({number} = {_double(self.number)}, false))"
        is_negated = self.sign[0] == "!"
        return f"coalesce(({holds}) <> {is_negated}, {is_negated})"

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.value}"


def _double(number: float) -> str:
    return f"CAST('{number!r}' AS DOUBLE)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="manifest to write")
    for name, column in BOUNDS.items():
        what = _HELP.get(column, column)
        for end, word in (("min", "least"), ("max", "greatest")):
            parser.add_argument(f"--{end}-{name}", metavar=name.upper(), help=f"{word} {what}")
    parser.add_argument("--checked", action="store_true", help="only clips that `check` found ok")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="COLUMN <, <=, >, >=, ==, !=, ~ or !~ VALUE without quotes, or an SQL expression "
        "(DuckDB)",
    )
    add_options(parser)


def _bounds(args: argparse.Namespace) -> list[Condition]:
    """The conditions of the options but --where. Raises ManifestError for a value that is none."""
    found = [
        Condition(column, sign, _bound(f"--{end}-{name}", column, given))
        for name, column in BOUNDS.items()
        for end, sign in (("min", ">="), ("max", "<="))
        if (given := getattr(args, f"{end}_{name}")) is not None
    ]
    return [*found, Condition(COLUMN, "==", GOOD)] if args.checked else found


def _bound(option: str, column: str, given: str) -> str:
    size = re.fullmatch(r"([\d.]+)([KMG])B?", given.upper())
    if size and column == SIZE:
        given = str(float(size[1]) * _UNITS[size[2]])
    elif column == "resolution" and math.isnan(floats([given])[0]):
        from trainer.data.plan.aspect import resolution

        given = str(resolution(given).pixels)
    if math.isnan(floats([given])[0]):
        raise ManifestError(f"{option} {given!r} is not a number")
    return given


def run(args: argparse.Namespace) -> int:
    """Write the rows that meet every condition."""
    bounds = _bounds(args)
    if not bounds and not args.where:
        raise ManifestError(
            "filter by what?", hint="--min-frames 52, --where 'vmaf > 2', …: --help"
        )
    with rewriting(args, [args.source]) as made:
        source = made.add(args.source)
        wanted: list[Condition | str] = [*bounds]
        # argparse before Python 3.13 drops `--` from `--where=--` (cpython#59317).
        texts = ["--" if text == [] else text for text in args.where]
        wanted += [Condition.parse(text, source.names) or text for text in texts]
        columns = [one.column for one in wanted if isinstance(one, Condition)]
        require(args.source, source.names, columns)
        state = _decide(made, source, wanted)
        made.write([Rows(source, state == _KEPT)])
    lines = [f"{made.rows:,} of {source.rows:,} rows"]
    for number, condition in enumerate(wanted):
        lines.append(f"{np.count_nonzero(state == number):>10,}  not {condition}")
    return made.report("\n".join(lines))


def _decide(made: Rewrite, source: Source, wanted: Sequence[Condition | str]) -> NDArray[np.int16]:
    """For each row _KEPT, or n for the first condition that it does not meet, or -1 - n where that
    cannot be decided."""
    database = made.database
    view = _view(made, source, [text for text in wanted if isinstance(text, str)])
    inner, cases, texts = [view or "1"], [], []
    for number, condition in enumerate(wanted):
        if isinstance(condition, str):
            cases.append(f"WHEN CASE WHEN (\n{condition}\n) THEN false ELSE true END THEN {number}")
            continue
        result, text = f'"result.{number}"', f'"text.{number}"'
        inner.append(f"{condition.result(database, source)} AS {result}")
        inner.append(f"{source.text(condition.column)} AS {text}")
        cases.append(f"WHEN {result} IS NULL THEN {-1 - number} WHEN NOT {result} THEN {number}")
        texts.append(f"WHEN {-1 - number} THEN {text}")
    database.seal()
    for condition in wanted:
        if isinstance(condition, str):
            _check_expression(database, source, condition, view)
    decided = (
        f"(SELECT *, CASE {' '.join(cases)} ELSE {_KEPT} END AS state "
        f"FROM (SELECT {', '.join(inner)} FROM {source.view}))"
    )
    states = database.column(f"SELECT CAST(state AS SMALLINT) FROM {decided}")
    rows = np.flatnonzero(states < 0).tolist()
    seen = f"SELECT state, CASE state {' '.join(texts)} END FROM {decided} WHERE state < 0"
    reasons = {}
    for row, (state, found) in zip(rows, database.all(seen) if rows else (), strict=True):
        condition = wanted[-1 - state]
        assert isinstance(condition, Condition)
        cell = repr(unescaped(found)) if source.kind(condition.column) == "VARCHAR" else found
        reasons[row] = f"{condition.column} is {cell[:60]}"
    made.leave_out(source, reasons)
    return states


def _view(made: Rewrite, source: Source, expressions: Sequence[str]) -> str:
    """SQL for the columns that expressions name; a csv cell that is not a number is NULL."""
    text = " ".join(expressions).casefold()
    names = [name for name in source.names if name.casefold() in text]
    return ", ".join(
        f"{value(source, one)} AS {identifier(one.name)}"
        for one in fields_of(made.database, source, names)
    )


def _check_expression(database: Database, source: Source, text: str, view: str) -> None:
    """Raise ManifestError for what is not one expression over the columns."""
    try:
        duckdb.SQLExpression(text)
        database.all(
            f"SELECT 1 FROM (SELECT {view or '1'} FROM {source.view} LIMIT 1) WHERE (\n{text}\n)"
        )
    except (duckdb.Error, ManifestError) as error:
        reason = first_line(error).removeprefix("DuckDB: ")
        raise ManifestError(
            f"--where {text!r}: {reason}", hint=f"the columns are {', '.join(source.names)[:300]}"
        ) from None
