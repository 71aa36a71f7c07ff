"""From a file to a `Manifest`, piece by piece: no row is in memory twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from trainer.data.manifest.manifest import (
    NUMBERS,
    REQUIRED,
    Manifest,
    ManifestError,
    RowCheck,
    WrongRow,
    check_suffix,
    refuse_too_many,
    require,
)
from trainer.data.manifest.table_io import Batch, CsvTable, first_line
from trainer.data.manifest.texts import ArrowColumn, ArrowTexts, PackedTexts

_CSV_ROWS, _PARQUET_ROWS = 8192, 65_536

Shown = Callable[[float, int], None]  # share read, rows


class Unread(Sequence[str]):
    """Texts that were not kept; asking for one is a fault of the program."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        raise LookupError("only the numbers of this manifest were read")

    def __iter__(self) -> Iterator[str]:
        raise LookupError("only the numbers of this manifest were read")


def read_file(
    source: Path,
    root: Path | None,
    max_wrong_rows: int,
    with_texts: bool = True,
    progress: Shown = lambda share, rows: None,
) -> Manifest:
    """A csv or parquet as a Manifest. Raises ManifestError, see `read_manifest`."""
    check_suffix(source)
    read = _read_csv if source.suffix == ".csv" else _read_parquet
    numbers: dict[str, list[Any]] = {name: [] for name in (*NUMBERS, "fps")}
    wrong: list[WrongRow] = []
    try:
        columns = read(source, numbers, wrong, with_texts, progress)
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror or error}") from None
    refuse_too_many(source, wrong, max_wrong_rows)
    arrays: dict[str, Any] = {
        name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in numbers.items()
    }
    count = len(arrays["height"])
    if not count:
        raise ManifestError(f"{source}: no usable row" + (f"; line {wrong[0]}" if wrong else ""))
    unread = Unread(count)
    return Manifest(
        source=source,
        root=root if root is not None else source.resolve().parent,
        paths=columns.pop("path", unread),
        texts=columns.pop("text", unread),
        num_frames=arrays["num_frames"],
        height=arrays["height"],
        width=arrays["width"],
        fps=arrays["fps"],
        extra=columns,
        wrong=tuple(wrong),
    )


def _read_csv(
    source: Path,
    numbers: dict[str, list[Any]],
    wrong: list[WrongRow],
    with_texts: bool,
    progress: Shown,
) -> dict[str, Sequence[Any]]:
    with contextlib.closing(CsvTable(source, REQUIRED)) as table:
        kept = [name for name in table.names if name not in numbers] if with_texts else []
        columns = {name: PackedTexts() for name in kept}
        while (batch := table.read(_CSV_ROWS)) is not None:
            check = RowCheck(batch.lines, wrong)
            for name, values in check_batch(check, batch).items():
                numbers[name].append(values[check.keep])
            whole = bool(check.keep.all())
            for name, texts in columns.items():
                cells = batch.column(name)
                texts.extend(
                    cells
                    if whole
                    else [cell for cell, good in zip(cells, check.keep, strict=True) if good]
                )
            progress(table.share, batch.start + len(batch))
        wrong += table.wrong
    return dict(columns)


def check_batch(check: RowCheck, batch: Batch) -> dict[str, Any]:
    """The numbers of a batch; rows that training leaves out are marked in `check`."""
    found: dict[str, Any] = {name: check.whole(name, batch.column(name)) for name in NUMBERS}
    found["fps"] = check.rates(batch.column("fps") if "fps" in batch.names else None)
    check.paths(batch.column("path"))
    check.texts(batch.column("text"))
    return found


def _read_parquet(
    source: Path,
    numbers: dict[str, list[Any]],
    wrong: list[WrongRow],
    with_texts: bool,
    progress: Shown,
) -> dict[str, Sequence[Any]]:
    import pyarrow as pa  # here: 0.2 s that csv users do not need
    import pyarrow.parquet as pq

    kept: dict[str, list[Any]] = {}
    row = 0
    try:
        # The file first: read_table would take a folder or a glob of files for one table.
        # pre_buffer would hold the whole file's bytes.
        with pq.ParquetFile(source, memory_map=False, pre_buffer=False) as file:
            names = file.schema_arrow.names
            require(source, names, REQUIRED)
            wanted = names if with_texts else [n for n in names if n in (*numbers, "path")]
            kept = {name: [] for name in wanted if name not in numbers} if with_texts else {}
            total = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=wanted):
                batch.validate(full=True)  # says which strings are not UTF-8
                check = RowCheck(range(row + 1, row + 1 + batch.num_rows), wrong)
                found: dict[str, Any] = {
                    name: check.whole(name, _chunked(batch, name)) for name in NUMBERS
                }
                found["fps"] = check.rates(_chunked(batch, "fps") if "fps" in names else None)
                _check_paths(check, _as_text(batch.column("path")))
                for name, values in found.items():
                    numbers[name].append(values[check.keep])
                if kept and not check.keep.all():
                    batch = batch.filter(pa.array(check.keep))
                for name, parts in kept.items():
                    column = batch.column(name)
                    parts.append(_as_text(column) if name in ("path", "text") else column)
                row += len(check.keep)
                progress(row / total, row)
    except pa.ArrowException as error:
        raise ManifestError(
            f"{source}: not a readable parquet manifest: {first_line(error)}"
        ) from None
    return {name: _column(name, kept[name]) for name in list(kept) if kept[name]}


def _column(name: str, parts: list[Any]) -> Sequence[Any]:
    import pyarrow as pa

    texts = name in ("path", "text") or _is_text(parts[0].type)
    return (ArrowTexts if texts else ArrowColumn)(pa.chunked_array(parts))


def _chunked(batch: Any, name: str) -> Any:
    """As a chunked array, whose `to_numpy` makes NaN of a null."""
    import pyarrow as pa

    return pa.chunked_array([batch.column(name)])


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_text(column: Any) -> Any:
    import pyarrow as pa

    return column if _is_text(column.type) else column.cast(pa.large_string())


def _check_paths(check: RowCheck, column: Any) -> None:
    """`RowCheck.paths` over a column of Arrow, without making its strings."""
    import pyarrow.compute as pc

    empty = pc.equal(pc.fill_null(pc.binary_length(column), 0), 0)
    doubtful = pc.or_(empty, pc.fill_null(pc.match_substring(column, "\0"), False))
    for place in np.flatnonzero(doubtful.to_numpy(zero_copy_only=False)).tolist():
        check.path(place, column[place].as_py())
