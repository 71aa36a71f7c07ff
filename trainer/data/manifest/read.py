"""Read a manifest, from whatever it is kept in: csv, parquet, or a folder of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.manifest.left_out import check_limit
from trainer.data.manifest.manifest import (
    MAX_WRONG_ROWS,
    NUMBERS,
    REQUIRED,
    Manifest,
    ManifestError,
    WrongRow,
)
from trainer.data.manifest.row_check import RowCheck
from trainer.data.manifest.table_io import CsvTable, ParquetTable, open_table
from trainer.data.manifest.texts import Packer, Unread

_CSV_ROWS, _PARQUET_ROWS = 8192, 65_536

Shown = Callable[[float, int], None]  # share read, rows


def read_manifest(
    path: Path | str,
    root: Path | str | None = None,
    max_wrong_rows: int = MAX_WRONG_ROWS,
    memory_efficient: bool = False,
) -> Manifest:
    """Read a manifest; wrong rows are left out and listed in `wrong`.

    `root` is where relative paths start, by default the manifest's own folder. A folder made by
    `python -m trainer.data shard`, or with `memory_efficient` the one beside the file, keeps
    captions and paths on disk: three numbers a row are in memory. Raises ManifestError for a file
    that is missing or of another kind, a missing column (naming the verb that makes it), no usable
    row, and more than `max_wrong_rows` wrong rows (listing the first of them).
    """
    source = Path(path)
    if memory_efficient or source.is_dir():
        # Here: it needs pyarrow.
        from trainer.data.manifest.shards import find_shards, read_shards

        return read_shards(find_shards(source), root)
    return _read_file(source, root, max_wrong_rows)


def read_numbers(
    source: Path, max_wrong_rows: int = MAX_WRONG_ROWS, progress: Shown = lambda share, rows: None
) -> Manifest:
    """As `read_manifest`, same rows left out, without paths and texts: 16 bytes of memory a row.

    `progress` gets (share read, rows). Raises ManifestError as `read_manifest` does, but for texts
    of a parquet file that are not UTF-8, which it does not read.
    """
    if source.is_dir():
        from trainer.data.manifest.shards import read_shards

        return read_shards(source)
    return _read_file(source, None, max_wrong_rows, with_texts=False, progress=progress)


def _read_file(
    source: Path,
    root: Path | str | None,
    max_wrong_rows: int,
    with_texts: bool = True,
    progress: Shown = lambda share, rows: None,
) -> Manifest:
    numbers: dict[str, list[Any]] = {name: [] for name in (*NUMBERS, "fps")}
    packers = {name: Packer() for name in ("path", "text")}
    wrong: list[WrongRow] = []
    rows = 0
    try:
        with closing(open_table(source, REQUIRED)) as table:
            for lines, columns, share in _batches(table, with_texts):
                check = RowCheck(lines, wrong)
                for name, values in check.columns(columns).items():
                    numbers[name].append(values[check.keep])
                for name, packer in packers.items() if with_texts else ():
                    packer.add(columns[name], check.keep)
                rows += len(lines)
                progress(share, rows)
            wrong += table.wrong if isinstance(table, CsvTable) else ()
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror or error}") from None
    wrong.sort(key=lambda row: row.line)
    check_limit(source, wrong, max_wrong_rows)
    arrays: dict[str, Any] = {
        n: np.concatenate(parts) if parts else np.zeros(0) for n, parts in numbers.items()
    }
    count = len(arrays["height"])
    if not count:
        raise ManifestError(f"{source}: no usable row" + (f"; line {wrong[0]}" if wrong else ""))
    paths, texts = (p.texts() if with_texts else Unread(count) for p in packers.values())
    return Manifest(
        source=source,
        root=Path(root) if root is not None else source.resolve().parent,
        paths=paths,
        texts=texts,
        wrong=tuple(wrong),
        **arrays,
    )


class _CsvColumns(Mapping[str, list[str]]):
    """Columns made when they are asked for: all at once they cost 9 % more time, for the cache."""

    def __init__(self, rows: list[list[str]], places: Mapping[str, int]) -> None:
        self._rows, self._places = rows, places

    def __getitem__(self, name: str) -> list[str]:
        place = self._places[name]
        return [row[place] for row in self._rows]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _batches(
    table: CsvTable | ParquetTable, with_texts: bool
) -> Iterator[tuple[Sequence[int], Mapping[str, Any], float]]:
    """Batches of rows as (lines, columns that training uses, share read)."""
    wanted = [name for name in (*REQUIRED, "fps") if name in table.names]
    if isinstance(table, CsvTable):
        places = {name: table.names.index(name) for name in wanted}
        while (read := table.read(_CSV_ROWS)) is not None:
            yield read.lines, _CsvColumns(read.rows, places), table.share
        return
    wanted = [name for name in wanted if with_texts or name != "text"]
    row = 0
    for batch in table.batches(_PARQUET_ROWS, wanted):
        lines = range(row + 1, row + 1 + batch.num_rows)
        row += batch.num_rows
        yield lines, {name: batch.column(name) for name in wanted}, row / table.rows
