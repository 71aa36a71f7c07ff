"""A folder of small parquet files, read without its texts in memory: see tools/shard.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.manifest.columns import require
from trainer.data.manifest.manifest import (
    NUMBERS,
    REQUIRED,
    SUFFIXES,
    Manifest,
    ManifestError,
    WrongRow,
)
from trainer.data.manifest.places import folder_of
from trainer.data.manifest.row_check import RowCheck
from trainer.data.manifest.table_io import first_line
from trainer.data.manifest.texts import Texts
from trainer.runlog.atomic_file import sha256_of
from trainer.runlog.json_file import read_object

INDEX, SCHEMA = "index.json", 1
_OPEN_FILES, _KEPT_GROUPS = 16, 64


def shard_folder(source: Path) -> Path:
    """Where the shards of a manifest lie."""
    return source.with_suffix(".shards")


def find_shards(source: Path) -> Path:
    """The folder itself, or the one beside a manifest file. Raises ManifestError, also where the
    file that the shards were made of is there and has other contents."""
    if source.is_dir():
        _refuse_stale(source, _sources(source, _index(source)))
        return source
    folder = shard_folder(source)
    if not folder.is_dir():
        raise ManifestError(
            f"{folder} does not exist, which memory_efficient reads instead of {source.name}",
            hint=f"python -m trainer.data shard {source}",
        )
    _refuse_stale(folder, [source])
    return folder


def source_facts(source: Path) -> dict[str, Any]:
    """What an index keeps of the file that the shards are made of: with other contents they are
    another data set. Size and time are compared first, to save reading the file."""
    before = source.stat()
    facts = {"source_bytes": before.st_size, "source_mtime_ns": before.st_mtime_ns}
    return {**facts, "source_sha256": sha256_of(source)}


def _sources(folder: Path, index: Mapping[str, Any]) -> list[Path]:
    """Where the file may be that the shards in a folder were made of."""
    if "source" in index:
        return [folder_of(folder) / str(index["source"])]
    return [folder.with_suffix(suffix) for suffix in SUFFIXES]  # made before it was kept


def _refuse_stale(folder: Path, sources: Sequence[Path]) -> None:
    """Raise ManifestError when the source is there and has changed since."""
    found = [source for source in sources if source.is_file()]
    reasons = [_difference(folder, _index(folder), source) for source in found]
    if found and all(reasons):
        raise ManifestError(
            f"{folder} was made from another {found[0].name}: {reasons[0]}",
            hint=f"python -m trainer.data shard {found[0]} {folder} --force",
        )


def _difference(folder: Path, index: Mapping[str, Any], source: Path) -> str:
    """How a source is not the one of the shards; "" when it is."""
    facts, size = source.stat(), index.get("source_bytes")
    if size != facts.st_size:
        return (
            f"that had {size:,} bytes, this has {facts.st_size:,}" if size else "of no known size"
        )
    if "source_sha256" not in index:  # made before contents were kept
        if facts.st_mtime_ns <= (folder / INDEX).stat().st_mtime_ns:
            return ""
        return "this was written later, and the shards do not say of which contents they are"
    if facts.st_mtime_ns == index.get("source_mtime_ns"):
        return ""
    return "" if sha256_of(source) == index["source_sha256"] else "its contents have changed"


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = read_object(folder / INDEX)
        rows, group = index["rows"], index["group_rows"]
        good = index["schema"] == SCHEMA and isinstance(group, int) and group > 0
        if not good or not all(isinstance(count, int) and count >= 0 for count in rows):
            raise ValueError
    except FileNotFoundError:
        raise ManifestError(f"{folder} is a folder that `shard` did not make") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ManifestError(f"{folder / INDEX} is damaged; make the shards again") from None
    return index


def read_shards(folder: Path, root: Path | str | None = None) -> Manifest:
    """A manifest whose paths, texts and other columns stay on disk.

    Relative paths start in `root`, by default in the folder that the shards lie in. Raises
    ManifestError for a folder that is not whole, and in use for a shard that is damaged.
    """
    reader = ShardReader(folder)
    if not reader.rows:
        raise ManifestError(f"{folder}: no usable row")
    names = [name for name in (*NUMBERS, "fps") if name in reader.names]
    wrong: list[WrongRow] = []
    arrays = RowCheck(range(1, reader.rows + 1), wrong).columns(names, reader.numbers)
    if wrong:  # `shard` lets none through
        raise ManifestError(f"{folder} is damaged: row {wrong[0]}")
    return Manifest(
        source=folder,
        root=Path(root) if root is not None else folder_of(folder),
        paths=ShardTexts(reader, "path"),
        texts=ShardTexts(reader, "text"),
        **arrays,
    )


class ShardReader:
    """Row groups by number, the last ones kept. For many threads of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder, index = folder, _index(folder)
        self._paths = [folder / f"{number + 1:05d}.parquet" for number in range(len(index["rows"]))]
        self._ends = np.cumsum(index["rows"])
        self._group_rows: int = index["group_rows"]
        self.rows: int = sum(index["rows"])
        self._lock = threading.Lock()
        self._file = lru_cache(_OPEN_FILES)(self._open)
        self._group = lru_cache(_KEPT_GROUPS)(self._read_group)
        self.names: list[str] = []
        for shard, count in enumerate(index["rows"]):
            file = self._file(shard)
            self.names = self.names or list(file.schema_arrow.names)
            if file.metadata.num_rows != count or file.schema_arrow.names != self.names:
                raise ManifestError(f"{self._paths[shard]} is not the shard that the index names")
        require(folder, self.names, REQUIRED)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardReader, (self._folder,)

    def numbers(self, name: str) -> Any:
        """A whole column, as an array of Arrow."""
        parts: list[Any] = []
        for shard, path in enumerate(self._paths):
            with _reading(path):
                parts += self._file(shard).read(columns=[name]).column(0).chunks
        with _reading(self._folder):
            return pa.concat_arrays(parts)

    def texts(self, name: str, start: int, stop: int) -> Iterator[str]:
        """Of rows start to stop - 1; null is the empty text."""
        row = start
        while row < stop:
            shard = int(np.searchsorted(self._ends, row, side="right"))
            first = int(self._ends[shard - 1]) if shard else 0
            group = (row - first) // self._group_rows
            with self._lock:
                array = self._group(shard, group, name)
            base = first + group * self._group_rows
            part = array.slice(row - base, min(stop, base + len(array)) - row)
            yield from (text or "" for text in part.to_pylist())
            row += len(part)

    def _read_group(self, shard: int, group: int, name: str) -> Any:
        with _reading(self._paths[shard]):
            table = self._file(shard).read_row_group(group, columns=[name])
            return table.column(0).combine_chunks()

    def _open(self, shard: int) -> Any:
        with _reading(self._paths[shard]):
            return pq.ParquetFile(self._paths[shard], pre_buffer=False)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors as ManifestError with the path."""
    try:
        yield
    except FileNotFoundError:
        raise ManifestError(f"{path} does not exist, and the index names it") from None
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"{path} cannot be read: {first_line(error)}") from None


class ShardTexts(Texts):
    """A column on disk."""

    def __init__(self, reader: ShardReader, name: str) -> None:
        self._reader, self._name = reader, name

    def __len__(self) -> int:
        return self._reader.rows

    def part(self, start: int, stop: int) -> list[str]:
        return list(self._reader.texts(self._name, start, stop))
