"""Manifests read in batches, csv and parquet.

Cells of a csv stay the text they are and columns of a parquet stay Arrow's, so a verb that only
chooses rows writes what it read, byte for byte and type for type.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.data.manifest.columns import check_bytes, hint_of_name, renamed, require
from trainer.data.manifest.manifest import FIELD_LIMIT, ManifestError, WrongRow, check_suffix

_BLOCK_BYTES = 1 << 18  # of a csv in hand, beside the rows


def column_type(name: str) -> Any:
    """Arrow's type of a column that the verbs here write; None for one they know nothing of."""
    import pyarrow as pa

    if name in ("num_frames", "height", "width", "resolution", "file_size"):
        return pa.int64()
    if name in ("aspect_ratio", "fps"):
        return pa.float64()
    return pa.string() if name in ("path", "text", "check") else None


def open_table(
    source: Path, required: Sequence[str] = (), others: Mapping[str, str] | None = None
) -> CsvTable | ParquetTable:
    """Raises ManifestError for a file that is missing, of another kind or without a column.
    `others` are names of columns in the file, and ours for them."""
    check_suffix(source, hint_of_name(source))
    try:
        check_bytes(source)
        table: CsvTable | ParquetTable = (CsvTable if source.suffix == ".csv" else ParquetTable)(
            source
        )
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror or error}") from None
    try:
        if others:
            table.rename(others)
        require(source, table.names, required)
    except ManifestError:
        table.close()
        raise
    return table


class CsvTable:
    """A csv; `wrong` has its rows that are not valid, found so far."""

    def __init__(self, source: Path) -> None:
        csv.field_size_limit(FIELD_LIMIT)
        self.source = source
        self.wrong: list[WrongRow] = []
        self._file = source.open("rb", _BLOCK_BYTES)
        self._size = max(1, source.stat().st_size)
        self._held: list[bytes] = []  # lines of the last two blocks
        self._last_block = self._held_after = 0  # lines of the last one, lines before both
        # Strict: else a quote that is never closed makes the rows up to the next quote one cell.
        self._reader = csv.reader(itertools.chain.from_iterable(self._lines()), strict=True)
        try:
            header = next(self._reader, None)
        except csv.Error as error:
            self.close()
            end = self._reader.line_num
            why = f"line 1 {_open(end)}" if end > 1 or _is_open(self._raw()) else str(error)
            raise ManifestError(f"{source}: {why}") from None
        if header is None:
            self.close()
            raise ManifestError(f"{source}: the file is empty")
        self.names = tuple(name.strip() for name in header)

    def _lines(self) -> Iterator[list[str]]:
        """A block of lines at a time: one generator step per line costs as much as parsing it."""
        while block := self._file.readlines(_BLOCK_BYTES):
            whole = b"".join(block)
            if b"\r" in whole:  # as text files with newline="" do: a lone return ends a line, too
                block = whole.splitlines(keepends=True)
            texts = [raw.decode("utf-8", "surrogateescape") for raw in block]
            if not self._held:
                texts[0] = texts[0].removeprefix("\ufeff")
            self._held_after += len(self._held) - self._last_block
            self._held = self._held[len(self._held) - self._last_block :] + block
            self._last_block = len(block)
            yield texts

    @property
    def share(self) -> float:
        """How much of the file has been read, 0 to 1."""
        return min(1.0, self._file.tell() / self._size)

    def batches(self, rows: int) -> Iterator[tuple[list[int], list[list[str]]]]:
        """All rows, about so many at a time, as (their lines, their cells)."""
        lines: list[int] = []
        found: list[list[str]] = []
        width, reader = len(self.names), self._reader
        while True:
            line = reader.line_num + 1
            try:
                for row in reader:
                    if reader.line_num > line and not self._is_closed(line):
                        self._refuse_quote(line)
                    elif len(row) == width:
                        lines.append(line)
                        found.append(row)
                        if len(found) >= rows:
                            yield lines, found
                            lines, found = [], []
                    elif row:  # an empty line is nothing, not a wrong row
                        self._refuse_width(line, row)
                    line = reader.line_num + 1
                break
            except csv.Error as error:
                row = self._lenient(line, error)
                if len(row) == width:
                    lines.append(line)
                    found.append(row)
                elif row:
                    self._refuse_width(line, row)
        if found:
            yield lines, found

    def _refuse_width(self, line: int, row: list[str]) -> None:
        last = self._reader.line_num
        where = f" in lines {line} to {last}" if last > line else ""
        reason = f"{len(row)} cells{where}, the header has {len(self.names)}"
        self.wrong.append(WrongRow(line, reason))

    def _lenient(self, line: int, error: csv.Error) -> list[str]:
        """A row that the strict reader refused, if its quotes concern no other row; else none."""
        raw = self._raw()
        if self._reader.line_num > line or _is_open(raw):
            self._refuse_quote(line)
            return []
        try:
            return next(csv.reader([raw]))  # "a" b, as other programs read it too
        except csv.Error:
            self.wrong.append(WrongRow(line, str(error)))
            return []

    def _refuse_quote(self, line: int) -> None:
        last = self._reader.line_num
        self.wrong.append(WrongRow(line, _open(last)))
        reason = f"belongs to the quote that line {line} opens"
        self.wrong += [WrongRow(swallowed, reason) for swallowed in range(line + 1, last + 1)]

    def _is_closed(self, line: int) -> bool:
        """Whether the row of several lines that the reader has just had has its quotes in pairs.

        The reader pairs the quote of `"a` with the first of a later row's `",b"`, and one is left.
        """
        first, last = line - 1 - self._held_after, self._reader.line_num - self._held_after
        return first >= 0 and sum(raw.count(b'"') for raw in self._held[first:last]) % 2 == 0

    def _raw(self) -> str:
        """The text of the last line that the reader has had."""
        line = self._held[self._reader.line_num - 1 - self._held_after]
        return line.decode("utf-8", "surrogateescape")

    def rename(self, others: Mapping[str, str]) -> None:
        """Give columns our names."""
        self.names = tuple(renamed(self.source, self.names, others))

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
    """A parquet file; `schema` is that of its batches, `is_cast` when it is another in the file.

    It is without dictionaries, which may differ from batch to batch, and notes of other programs.
    Columns that are texts by their name are texts: every reader takes them for such.
    """

    def __init__(self, source: Path) -> None:
        import pyarrow as pa  # here: 0.2 s that csv users do not need
        import pyarrow.parquet as pq

        self.source = source
        try:
            # pre_buffer would hold the whole file's bytes
            self._file = pq.ParquetFile(source, memory_map=False, pre_buffer=False)
        except pa.ArrowException as error:
            raise self._unreadable(error) from None
        fields = list(self._file.schema_arrow)
        kinds = [_plain_type(field.type) for field in fields]
        plain = [
            pa.string() if column_type(field.name) == pa.string() and not is_text(kind) else kind
            for field, kind in zip(fields, kinds, strict=True)
        ]
        self.is_cast = any(
            one != field.type and not pa.types.is_dictionary(field.type)
            for one, field in zip(plain, fields, strict=True)
        )
        self.schema = pa.schema(
            [field.with_type(kind) for field, kind in zip(fields, plain, strict=True)]
        )
        self.names = tuple(self.schema.names)
        self._in_file: dict[str, str] = {}  # our name -> the file's, where they differ
        self.rows = int(self._file.metadata.num_rows)

    def _unreadable(self, error: BaseException) -> ManifestError:
        return ManifestError(f"{self.source}: not a readable parquet manifest: {first_line(error)}")

    def batches(self, rows: int, names: Sequence[str] | None = None) -> Iterator[Any]:
        """All rows as batches of Arrow, of all columns or of some."""
        import pyarrow as pa

        try:
            own = None if names is None else [self._in_file.get(name, name) for name in names]
            ours = {other: name for name, other in self._in_file.items()}
            for batch in self._file.iter_batches(rows, columns=own):
                batch.validate(full=True)  # says which strings are not UTF-8
                fields = [self.schema.field(ours.get(n, n)) for n in batch.schema.names]
                arrays = map(self._plain, batch.columns, fields)
                yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def _plain(self, array: Any, field: Any) -> Any:
        import pyarrow as pa

        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        try:
            return array.cast(field.type)
        except pa.ArrowException as error:
            raise ManifestError(
                f"{self.source}: column {field.name!r} is {array.type} and cannot be read as text: "
                f"{first_line(error)}"
            ) from None

    def rename(self, others: Mapping[str, str]) -> None:
        """Give columns our names."""
        import pyarrow as pa

        self.names = tuple(renamed(self.source, self.names, others))
        fields = zip(self.names, self.schema, strict=True)
        self.schema = pa.schema([one.with_name(name) for name, one in fields])
        self._in_file = {ours: other for other, ours in others.items()}

    def close(self) -> None:
        self._file.close()


def _plain_type(kind: Any) -> Any:
    """The type that verbs work with: without dictionaries, and without views, of which Arrow can
    choose no rows (array_take), at any depth."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.list_(item) if pa.types.is_list(kind) else pa.large_list(item)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_plain_type(one.type)) for one in kind])
    return kind


def is_text(kind: Any) -> bool:
    """Whether a type of Arrow is that of texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def first_line(error: BaseException) -> str:
    """Of a library's message; its class name where the message is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
