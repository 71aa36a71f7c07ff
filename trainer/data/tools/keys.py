"""Which rows have a key that another row or table has, without keeping the keys in memory.

Keys become 128-bit hashes, and hashes go to 64 files by their first bits; equal keys meet in one file,
and only one file is looked at at a time: 10 million rows take 10 MB for the answer and 20 MB for a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.table_io import Batch, Table

_BITS = 6
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
_READ_ROWS = 8192


def digests(batch: Batch, names: Sequence[str]) -> list[bytes]:
    """A hash of 16 bytes for each row's values of these columns; 24 and "24" are the same."""
    columns = [["" if v is None else str(v) for v in batch.column(name)] for name in names]
    if len(columns) == 1:
        keys = [text.encode("utf-8", "surrogateescape") for text in columns[0]]
    else:  # the lengths tell where a value ends
        keys = [
            b"".join(
                b"%d:%b" % (len(part), part)
                for part in (text.encode("utf-8", "surrogateescape") for text in row)
            )
            for row in zip(*columns, strict=True)
        ]
    return [hashlib.blake2b(key, digest_size=16).digest() for key in keys]


class Buckets:
    """Hashes and row numbers of one table, on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._paths = [folder / f"{name}-{number:02d}" for number in range(1 << _BITS)]
        self.rows = 0

    def fill(
        self,
        table: Table,
        names: Sequence[str],
        progress: Callable[[float, int], None] = lambda share, rows: None,
    ) -> None:
        """Read a table to its end."""
        files = [path.open("wb") for path in self._paths]
        try:
            while (batch := table.read(_READ_ROWS)) is not None:
                hashed = np.frombuffer(b"".join(digests(batch, names)), "<u8").reshape(-1, 2)
                records = np.empty(len(batch), _RECORD)
                records["high"], records["low"] = hashed[:, 0], hashed[:, 1]
                records["row"] = np.arange(batch.start, batch.start + len(batch))
                bucket = (records["high"] >> np.uint64(64 - _BITS)).astype(np.int64)
                order = np.argsort(bucket, kind="stable")
                ends = np.cumsum(np.bincount(bucket, minlength=len(files)))
                for file, part in zip(files, np.split(records[order], ends[:-1]), strict=True):
                    part.tofile(file)
                self.rows = batch.start + len(batch)
                progress(table.share, self.rows)
        finally:
            for file in files:
                file.close()

    def parts(self) -> list[Path]:
        return self._paths


def first_of_each(mine: Buckets) -> NDArray[np.bool_]:
    """True for a row whose key no row before it has."""
    keep = np.zeros(mine.rows, bool)
    for path in mine.parts():
        records = np.fromfile(path, _RECORD)
        records = records[np.lexsort((records["row"], records["low"], records["high"]))]
        keep[records["row"][_news(records)]] = True
    return keep


def also_in(mine: Buckets, other: Buckets) -> NDArray[np.bool_]:
    """True for a row of `mine` whose key `other` has, too."""
    keep = np.zeros(mine.rows, bool)
    for path, others in zip(mine.parts(), other.parts(), strict=True):
        here, there = np.fromfile(path, _RECORD), np.fromfile(others, _RECORD)
        both = np.concatenate([there, here])
        is_mine = np.arange(len(both)) >= len(there)
        order = np.lexsort((is_mine, both["low"], both["high"]))  # the other's rows first of a key
        both, is_mine = both[order], is_mine[order]
        new = _news(both)
        found = ~is_mine[new][np.cumsum(new) - 1] if len(both) else is_mine
        keep[both["row"][found & is_mine]] = True
    return keep


def _news(records: NDArray[Any]) -> NDArray[np.bool_]:
    """True where a sorted record's key differs from the one before."""
    new = np.ones(len(records), bool)
    for name in ("high", "low"):
        same = records[name][1:] == records[name][:-1]
        new[1:] = ~same if name == "high" else new[1:] | ~same
    return new
