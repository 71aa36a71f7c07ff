"""A manifest in SQL: its columns as texts, numbers and keys.

Columns are c0, c1, … in the file's order, because DuckDB ignores case in names. Cells of a csv are
VARCHAR and stay the text they are.
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from trainer.data.manifest.manifest import WrongRow
from trainer.data.manifest.table_io import CsvTable

# Bytes that are not UTF-8 wait in a VARCHAR as characters of this private range. A file that has
# such characters itself is escaped too, so that every byte comes back.
_ESCAPED = range(0x10FF80, 0x110000)
_TO_SURROGATES = {code: 0xDC80 + code - 0x10FF80 for code in _ESCAPED}
_ESCAPES = {surrogate: chr(code) for code, surrogate in _TO_SURROGATES.items()} | {
    code: "".join(chr(0x10FF00 + byte) for byte in chr(code).encode()) for code in _ESCAPED
}
ESCAPED_LEADS = (b"\xf4\x8f\xbe", b"\xf4\x8f\xbf")
_ESCAPED_BYTE = re.compile(rb"\xf4\x8f([\xbe\xbf])([\x80-\xbf])")


def quoted(text: object) -> str:
    """A string literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A column name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def unescaped(text: str) -> str:
    """With surrogate escapes for bytes that are not UTF-8."""
    return text.translate(_TO_SURROGATES)


def unescaped_bytes(data: bytes) -> bytes:
    """UTF-8 of an escaped source as the bytes that they stand for."""
    return _ESCAPED_BYTE.sub(
        lambda found: bytes([0x80 + (found[1][0] - 0xBE) * 0x40 + found[2][0] - 0x80]), data
    )


def escaped(text: str) -> str:
    """As the cells of an escaped source are: without surrogates."""
    return text if text.isascii() else text.translate(_ESCAPES)


@dataclass(frozen=True)
class Source:
    """A manifest as the view `view` with columns c0, c1, …; `wrong` are rows left out of it."""

    path: Path
    view: str
    names: tuple[str, ...]
    types: tuple[str, ...]  # DuckDB's
    rows: int
    wrong: list[WrongRow]
    is_escaped: bool = False
    schema: pa.Schema | None = None  # of a parquet file
    folder: str = ""  # where relative paths start
    others: Mapping[str, str] | None = None  # names in the file -> ours
    normal: str = ""  # a function that gives absolute paths one spelling

    @property
    def is_csv(self) -> bool:
        return self.schema is None

    def column(self, name: str) -> str:
        return f"c{self.names.index(name)}"

    def kind(self, name: str) -> str:
        return self.types[self.names.index(name)]

    def text(self, name: str) -> str:
        """SQL for a cell as a csv has it; a null is the empty text."""
        kind, column = self.kind(name), self.column(name)
        if self.is_csv:
            return column
        if kind == "BOOLEAN":
            return f"CASE {column} WHEN true THEN 'True' WHEN false THEN 'False' ELSE '' END"
        if kind == "FLOAT":  # as Python and numpy show it
            column = f"CAST({column} AS DOUBLE)"
        if kind == "BLOB":
            column = f"decode({column})"
        return f"coalesce(CAST({column} AS VARCHAR), '')"

    def number(self, name: str) -> str:
        """SQL for a cell as DOUBLE; null where it is none. A rate may be a fraction: 30000/1001."""
        is_plain = self.kind(name) == "BOOLEAN" or is_number(self.kind(name))
        if name != "fps" or is_plain:
            return f"TRY_CAST({self.column(name) if is_plain else self.text(name)} AS DOUBLE)"
        text = self.text(name)
        above, below = (f"TRY_CAST(split_part({text}, '/', {n}) AS DOUBLE)" for n in (1, 2))
        fraction = f"CASE WHEN {below} > 0 THEN {above} / {below} END"
        return (
            f"CASE WHEN contains({text}, '/') THEN {fraction} ELSE TRY_CAST({text} AS DOUBLE) END"
        )

    def key(self, names: Sequence[str]) -> str:
        """SQL for 128 bits that are equal for equal cells; 24 and "24" are the same, and so are
        two paths to one file."""
        texts = [self._file() if name == "path" else self.text(name) for name in names]
        if len(texts) > 1:  # the lengths tell where a cell ends
            texts = [part for text in texts for part in (f"length({text})", "':'", text)]
        return f"md5_number(concat({', '.join(texts)}))"

    def _file(self) -> str:
        """SQL for the absolute path of a row's file, in one spelling."""
        text = self.text("path")
        start = quoted(escaped(f"{self.folder}/"))
        whole = f"CASE WHEN starts_with({text}, '/') THEN {text} ELSE {start} || {text} END"
        is_dotted = f"regexp_matches('/' || {text} || '/', '/[.][.]?/')"
        may_be = f"contains({text}, '/.') OR starts_with({text}, '.')"  # a tenth of its time
        odd = f"contains({text}, '//') OR ends_with({text}, '/') OR (({may_be}) AND {is_dotted})"
        return (
            f"CASE WHEN {text} = '' THEN '' WHEN {odd} THEN {self.normal}({whole}) ELSE {whole} END"
        )

    def keys(self, names: Sequence[str]) -> str:
        """A query for the row number n, from 0, and the key k of each row."""
        return f"SELECT row_number() OVER () - 1 AS n, {self.key(names)} AS k FROM {self.view}"

    def lines(self, rows: Sequence[int]) -> dict[int, int]:
        """Lines of the file in which these rows of the view stand."""
        if not self.is_csv or not rows:
            return {row: row + 1 for row in rows}
        wanted = set(rows)
        with closing(CsvTable(self.path)) as table:
            lines = chain.from_iterable(lines for lines, _ in table.batches(8192))
            read = enumerate(islice(lines, max(rows) + 1))
            return {row: line for row, line in read if row in wanted}


def is_number(kind: str) -> bool:
    whole = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
    return kind in ("DOUBLE", "FLOAT") or kind.removeprefix("U") in whole
