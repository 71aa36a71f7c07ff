"""Read a manifest, from whatever it is kept in: csv, parquet, or a folder of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
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
from trainer.data.manifest.places import folder_of
from trainer.data.manifest.row_check import Column, RowCheck
from trainer.data.manifest.table_io import CsvTable, ParquetTable, open_table
from trainer.data.manifest.texts import Packer, Unread

_CSV_ROWS, _PARQUET_ROWS = 8192, 65_536


def read_manifest(
    path: Path | str,
    root: Path | str | None = None,
    max_wrong_rows: int = MAX_WRONG_ROWS,
    memory_efficient: bool = False,
    with_texts: bool = True,
    progress: Callable[[float, int], None] = lambda share, rows: None,
) -> Manifest:
    """Read a manifest; wrong rows are left out and listed in `wrong`.

    `root` is where relative paths start, by default the manifest's own folder. A folder made by
    `python -m trainer.data shard`, or with `memory_efficient` the one beside the file, keeps
    captions and paths on disk: three numbers a row are in memory. Without `with_texts` a file's
    rows take 16 bytes each, and texts of a parquet file may be other than UTF-8. `progress` gets
    (share read, rows). Raises ManifestError for a file that is missing or of another kind, a
    missing column (naming the verb that makes it), no usable row, and more than `max_wrong_rows`
    wrong rows (listing the first of them).
    """
    source = Path(path)
    if memory_efficient or source.is_dir():
        # Here: it needs pyarrow.
        from trainer.data.manifest.shards import find_shards, read_shards

        return read_shards(find_shards(source), root)
    numbers: dict[str, list[Any]] = {name: [] for name in (*NUMBERS, "fps")}
    packers = {name: Packer() for name in ("path", "text")}
    wrong: list[WrongRow] = []
    rows = 0
    try:
        with closing(open_table(source, REQUIRED)) as table:
            for lines, names, column, share in _batches(table, with_texts):
                check = RowCheck(lines, wrong)
                for name, values in check.columns(names, column).items():
                    numbers[name].append(values[check.keep])
                for name, packer in packers.items() if with_texts else ():
                    packer.add(column(name), check.keep)
                rows += len(lines)
                progress(share, rows)
            wrong += table.wrong if isinstance(table, CsvTable) else ()
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror or error}") from None
    wrong.sort(key=lambda row: row.line)
    more = "--max-wrong-rows N allows more, of a run --dataset.max-wrong-rows N; they are left out"
    check_limit(source, wrong, max_wrong_rows, more)
    arrays: dict[str, Any] = {
        n: np.concatenate(parts) if parts else np.zeros(0) for n, parts in numbers.items()
    }
    count = len(arrays["height"])
    if not count:
        raise ManifestError(f"{source}: no usable row" + (f"; line {wrong[0]}" if wrong else ""))
    paths, texts = (p.texts() if with_texts else Unread(count) for p in packers.values())
    return Manifest(
        source=source,
        root=Path(root) if root is not None else folder_of(source),
        paths=paths,
        texts=texts,
        wrong=tuple(wrong),
        **arrays,
    )


def _batches(
    table: CsvTable | ParquetTable, with_texts: bool
) -> Iterator[tuple[Sequence[int], list[str], Column, float]]:
    """Batches of rows as (lines, columns that training uses, their values, share read)."""
    names = [name for name in (*REQUIRED, "fps") if name in table.names]
    if isinstance(table, CsvTable):
        for lines, rows in table.batches(_CSV_ROWS):
            yield lines, names, partial(_cells, table.names, rows), table.share
        return
    names = [name for name in names if with_texts or name != "text"]
    row = 0
    for batch in table.batches(_PARQUET_ROWS, names):
        before, row = row, row + batch.num_rows
        yield range(before + 1, row + 1), names, batch.column, row / table.rows


def _cells(names: Sequence[str], rows: list[list[str]], name: str) -> list[str]:
    """One column of a csv; all at once cost 9 % more time, for the cache."""
    place = names.index(name)
    return [row[place] for row in rows]
