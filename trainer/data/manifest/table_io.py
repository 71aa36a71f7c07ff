"""Manifests read a piece at a time, csv and parquet alike, from any remembered place.

A `Batch` is some rows with their column names. Cells of a csv stay the text they are and columns of
a parquet stay Arrow's, so a verb that only chooses rows returns what it was given, byte for byte
and type for type. `Table.position` after a read says where to continue in another process.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import (
    FIELD_LIMIT,
    ManifestError,
    WrongRow,
    check_suffix,
    require,
)

Position = dict[str, int]
_BLOCK_BYTES = 1 << 18  # of a csv in hand, beside the rows


class Batch(Protocol):
    """Rows in order."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def lines(self) -> Sequence[int]:
        """Where each row stands in its file, first is 1."""

    @property
    def start(self) -> int:
        """Number of rows of the file before the first of these, as they were read."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Sequence[Any]:
        """Values of a column: texts in a csv, Python values (None: null) in a parquet."""

    def take(self, places: Sequence[int]) -> Batch:
        """The rows at these places."""

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> Batch:
        """Columns replaced where they are there, else added behind the others."""

    def select(self, names: Sequence[str]) -> Batch:
        """These columns in this order; one that is not there is empty in every row."""


@dataclass(frozen=True)
class CsvBatch:
    """Rows as the csv module gives them."""

    names: tuple[str, ...]
    rows: list[list[Any]]
    lines: Sequence[int]
    start: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        place = self.names.index(name)
        return [row[place] for row in self.rows]

    def take(self, places: Sequence[int]) -> CsvBatch:
        rows, lines = [self.rows[at] for at in places], [self.lines[at] for at in places]
        return CsvBatch(self.names, rows, lines, self.start)

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> CsvBatch:
        names = (*self.names, *(name for name in columns if name not in self.names))
        rows = [[*row, *[""] * (len(names) - len(row))] for row in self.rows]
        for name, values in columns.items():
            place = names.index(name)
            for row, value in zip(rows, values, strict=True):
                row[place] = value
        return CsvBatch(names, rows, self.lines, self.start)

    def select(self, names: Sequence[str]) -> CsvBatch:
        if tuple(names) == self.names:
            return self
        places = [self.names.index(name) if name in self.names else None for name in names]
        rows = [["" if at is None else row[at] for at in places] for row in self.rows]
        return CsvBatch(tuple(names), rows, self.lines, self.start)


@dataclass(frozen=True)
class ArrowBatch:
    """Rows of a parquet file."""

    data: Any  # pyarrow.RecordBatch
    lines: Sequence[int]
    start: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.data.schema.names)

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def column(self, name: str) -> list[Any]:
        return list(self.data.column(name).to_pylist())

    def take(self, places: Sequence[int]) -> ArrowBatch:
        import pyarrow as pa

        data = self.data.take(pa.array(places, pa.int64()))
        return ArrowBatch(data, [self.lines[at] for at in places], self.start)

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> ArrowBatch:
        import pyarrow as pa

        data = self.data
        for name, values in columns.items():
            place = data.schema.get_field_index(name)
            kind = column_type(name)
            if kind is None and place >= 0:
                kind = data.schema.field(place).type
            array = pa.array(list(values), kind)  # of a new column the values tell the type
            data = (
                data.append_column(name, array)
                if place < 0
                else _replaced(data, place, name, array)
            )
        return ArrowBatch(data, self.lines, self.start)

    def select(self, names: Sequence[str]) -> ArrowBatch:
        import pyarrow as pa

        arrays = [
            self.data.column(name)
            if name in self.names
            else pa.nulls(len(self), column_type(name) or pa.string())
            for name in names
        ]
        return ArrowBatch(pa.RecordBatch.from_arrays(arrays, list(names)), self.lines, self.start)


def _replaced(data: Any, place: int, name: str, array: Any) -> Any:
    import pyarrow as pa

    arrays, names = list(data.columns), list(data.schema.names)
    arrays[place], names[place] = array, name
    return pa.RecordBatch.from_arrays(arrays, names)


def column_type(name: str) -> Any:
    """Arrow's type of a column that the verbs here write; None for one they know nothing of."""
    import pyarrow as pa

    whole = ("num_frames", "height", "width", "resolution", "file_size")
    real = ("aspect_ratio", "fps")
    text = ("path", "text", "check")
    if name in whole:
        return pa.int64()
    return pa.float64() if name in real else pa.string() if name in text else None


class Table(Protocol):
    """A manifest that is read from front to back."""

    @property
    def source(self) -> Path: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def wrong(self) -> list[WrongRow]:
        """Rows that are none, found so far; the reader empties it."""

    @property
    def position(self) -> Position:
        """Where the next read begins."""

    @property
    def share(self) -> float:
        """How much of the file has been read, 0 to 1."""

    def seek(self, position: Position) -> None: ...

    def read(self, rows: int) -> Batch | None:
        """The next rows, at most that many; None at the end."""

    def close(self) -> None: ...


def open_table(source: Path, required: Sequence[str] = ()) -> Table:
    """Raises ManifestError for a file that is missing, of another kind or without a column."""
    check_suffix(source)
    try:
        return (
            CsvTable(source, required)
            if source.suffix == ".csv"
            else ParquetTable(source, required)
        )
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror or error}") from None


class CsvTable:
    """A csv, with the byte at which the next row begins."""

    def __init__(self, source: Path, required: Sequence[str]) -> None:
        csv.field_size_limit(FIELD_LIMIT)
        self.source = source
        self.wrong: list[WrongRow] = []
        self._file = source.open("rb", _BLOCK_BYTES)
        self._size = max(1, source.stat().st_size)
        self._block: list[bytes] = []
        self._block_before: list[bytes] = []
        self._block_offset = self._block_line = self._first_line = self._row = 0
        try:
            self.seek({"offset": 0, "line": 0, "row": 0})
            header = next(self._reader, None)
            if header is None:
                raise ManifestError(f"{source}: the file is empty")
            self.names = tuple(name.strip() for name in header)
            require(source, self.names, required)
        except csv.Error as error:
            self._file.close()
            end = self._line
            why = f"line 1 {_open(end)}" if end > 1 or _is_open(self._raw(end)) else str(error)
            raise ManifestError(f"{source}: {why}") from None
        except ManifestError:
            self._file.close()
            raise

    def _lines(self) -> Iterator[list[str]]:
        """A block of lines at a time: one generator step per line costs as much as parsing it."""
        while block := self._file.readlines(_BLOCK_BYTES):
            whole = b"".join(block)
            if b"\r" in whole:  # as text files with newline="" do: a lone return ends a line, too
                block = whole.splitlines(keepends=True)
            self._block_offset += sum(map(len, self._block))
            self._block_line += len(self._block)
            self._block_before, self._block = self._block, block
            texts = [raw.decode("utf-8", "surrogateescape") for raw in block]
            if not self._block_line:
                texts[0] = texts[0].removeprefix("\ufeff")
            yield texts

    @property
    def _line(self) -> int:
        """Lines of the file that the reader has had."""
        return self._first_line + self._reader.line_num

    @property
    def _offset(self) -> int:
        """Bytes of the file that the reader has had; they end in the block at hand."""
        had = self._block[: self._line - self._block_line]
        return self._block_offset + sum(map(len, had))

    @property
    def position(self) -> Position:
        return {"offset": self._offset, "line": self._line, "row": self._row}

    @property
    def share(self) -> float:
        return min(1.0, self._offset / self._size)

    def seek(self, position: Position) -> None:
        self._file.seek(position["offset"])
        self._block = []
        self._block_offset, self._row = position["offset"], position["row"]
        self._block_line = self._first_line = position["line"]
        # Strict: else a quote that is never closed makes the rows up to the next quote one cell.
        self._reader = csv.reader(itertools.chain.from_iterable(self._lines()), strict=True)

    def read(self, rows: int) -> CsvBatch | None:
        found: list[list[str]] = []
        lines: list[int] = []
        width, reader, before = len(self.names), self._reader, self._first_line
        ended = False
        while len(found) < rows and not ended:
            line = before + reader.line_num + 1
            try:
                for row in reader:
                    if before + reader.line_num > line and not self._is_closed(line):
                        self._refuse_quote(line)
                    elif len(row) == width:
                        found.append(row)
                        lines.append(line)
                        if len(found) == rows:
                            break
                    elif row:  # an empty line is nothing, not a wrong row
                        self._refuse_width(line, row)
                    line = before + reader.line_num + 1
                else:
                    ended = True
            except csv.Error as error:
                lenient = self._lenient(line, error)
                if lenient is not None and len(lenient) == width:
                    found.append(lenient)
                    lines.append(line)
                elif lenient is not None:
                    self._refuse_width(line, lenient)
        if not found:
            return None
        start, self._row = self._row, self._row + len(found)
        return CsvBatch(self.names, found, lines, start)

    def _refuse_width(self, line: int, row: list[str]) -> None:
        last = self._line
        where = f" in lines {line} to {last}" if last > line else ""
        reason = f"{len(row)} cells{where}, the header has {len(self.names)}"
        self.wrong.append(WrongRow(line, reason))

    def _lenient(self, line: int, error: csv.Error) -> list[str] | None:
        """A row that the strict reader refused, if its quotes concern no other row; else None."""
        last = self._line
        raw = self._raw(last)
        if last == line and not _is_open(raw):  # "a" b, as other programs read it too
            try:
                return next(csv.reader([raw]))
            except csv.Error:
                self.wrong.append(WrongRow(line, str(error)))
                return None
        self._refuse_quote(line)
        return None

    def _refuse_quote(self, line: int) -> None:
        last = self._line
        self.wrong.append(WrongRow(line, _open(last)))
        reason = f"belongs to the quote that line {line} opens"
        self.wrong += [WrongRow(swallowed, reason) for swallowed in range(line + 1, last + 1)]

    def _is_closed(self, line: int) -> bool:
        """Whether the row of several lines that the reader has just had has its quotes in pairs.

        The reader pairs the quote of `"a` with the first of a later row's `",b"`, and one is left.
        """
        here = self._block[max(0, line - 1 - self._block_line) : self._line - self._block_line]
        earlier = self._block_line - line + 1  # of its lines in the block before
        if earlier > len(self._block_before):
            return False
        there = self._block_before[len(self._block_before) - earlier :] if earlier > 0 else []
        return sum(raw.count(b'"') for raw in (*there, *here)) % 2 == 0

    def _raw(self, line: int) -> str:
        """The text of the last line that the reader has had."""
        return self._block[line - 1 - self._block_line].decode("utf-8", "surrogateescape")

    def close(self) -> None:
        self._file.close()


def _open(last: int) -> str:
    return f"opens a quote that is not closed by line {last}"


def _is_open(raw: str) -> bool:
    """Whether a line ends inside a quote: then the reader takes the next one for the same row."""
    try:
        return sum(1 for _ in csv.reader([raw, "next"])) == 1
    except csv.Error:
        return False


class ParquetTable:
    """A parquet file, one row group in hand at a time."""

    def __init__(self, source: Path, required: Sequence[str]) -> None:
        import pyarrow as pa  # here: 0.2 s that csv users do not need
        import pyarrow.parquet as pq

        self.source = source
        self.wrong: list[WrongRow] = []
        self._broken: Any = pa.ArrowException
        try:
            # pre_buffer would hold the whole file's bytes
            self._file = pq.ParquetFile(source, memory_map=False, pre_buffer=False)
        except pa.ArrowException as error:
            raise self._unreadable(error) from None
        self.schema = _plain(self._file.schema_arrow)
        self.names = tuple(self.schema.names)
        self._rows = int(self._file.metadata.num_rows)
        self._row = 0
        self._rest: Any = None
        self._batches: Iterator[Any] = self._from(0)
        try:
            require(source, self.names, required)
        except ManifestError:
            self._file.close()
            raise

    def _unreadable(self, error: BaseException) -> ManifestError:
        return ManifestError(f"{self.source}: not a readable parquet manifest: {first_line(error)}")

    def _from(self, row: int) -> Iterator[Any]:
        before = 0
        for group in range(self._file.metadata.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            skip, before = max(0, row - before), before + count
            if skip >= count:
                continue
            for batch in self._file.iter_batches(batch_size=8192, row_groups=[group]):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                batch.validate(full=True)  # says which strings are not UTF-8
                yield _decoded(batch.slice(skip), self.schema)
                skip = 0

    @property
    def position(self) -> Position:
        return {"row": self._row}

    @property
    def share(self) -> float:
        return self._row / max(1, self._rows)

    def seek(self, position: Position) -> None:
        self._row, self._rest = position["row"], None
        self._batches = self._from(self._row)

    def read(self, rows: int) -> ArrowBatch | None:
        try:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
        except (self._broken, OSError) as error:
            raise self._unreadable(error) from None
        except ManifestError as error:
            raise ManifestError(f"{self.source}: {error}") from None
        if self._rest is None:
            return None
        data, self._rest = self._rest.slice(0, rows), self._rest.slice(rows)
        start, self._row = self._row, self._row + data.num_rows
        return ArrowBatch(data, range(start + 1, self._row + 1), start)

    def close(self) -> None:
        self._file.close()


def _plain(schema: Any) -> Any:
    """Without dictionaries, which may differ from batch to batch, and notes of other programs.

    Columns that are texts by their name are texts: every reader takes them for such.
    """
    import pyarrow as pa

    def plain(field: Any) -> Any:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if column_type(field.name) == pa.string() and not is_text:
            kind = pa.string()
        return field.with_type(kind)

    return pa.schema([plain(field) for field in schema])


def _decoded(batch: Any, schema: Any) -> Any:
    import pyarrow as pa

    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        try:
            arrays.append(array.cast(field.type))
        except pa.ArrowException as error:
            raise ManifestError(
                f"column {field.name!r} is {array.type} and cannot be read as text: "
                f"{first_line(error)}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def first_line(error: BaseException) -> str:
    """Of what a library says; its name where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Each value as a float, NaN where it is none."""
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in values], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def usable(
    batch: Batch, refuse: Sequence[tuple[str, Callable[[Any], str]]]
) -> tuple[Batch, list[WrongRow]]:
    """Without the rows that one of the (column, why) refuses; `why` gives "" for a good value."""
    reasons: dict[int, str] = {}
    for name, why in refuse:
        for place, value in enumerate(batch.column(name)):
            reason = why(value)
            if reason:
                reasons.setdefault(place, reason)
    if not reasons:
        return batch, []
    wrong = [WrongRow(batch.lines[place], reason) for place, reason in sorted(reasons.items())]
    return batch.take([place for place in range(len(batch)) if place not in reasons]), wrong


def path_fault(value: Any) -> str:
    """Why this is no path, or ""."""
    if not isinstance(value, str) or not value:
        return "path is empty"
    return "path holds a NUL character" if "\0" in value else ""


def cell(value: Any) -> Any:
    """A parquet value as the csv module should write it."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str, ensure_ascii=False)
    # as files are written here, the same bytes
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
