"""`shard`: a manifest as a folder of small parquet files, read without its texts in memory.

python -m trainer.data shard manifest.parquet                # makes manifest.shards beside it
python -m trainer.train stage1 --dataset.data-path manifest.shards

Numbers are read whole (16 bytes a row). A path or caption is read with its row group of 1,024 rows
when it is wanted, and the last groups are kept: 10 million captions of 500 bytes stay 5 GB on disk.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from trainer.arguments import whole
from trainer.data.manifest.manifest import (
    NUMBERS,
    REQUIRED,
    Manifest,
    ManifestError,
    RowCheck,
    WrongRow,
    require,
)
from trainer.data.manifest.pipeline import Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.reader import check_batch
from trainer.data.manifest.resumable_write import ParquetFormat, regroup
from trainer.data.manifest.table_io import Batch, first_line
from trainer.data.tools.left_out import tell_left_out
from trainer.runlog.atomic_file import sync
from trainer.runlog.json_file import read_object

INDEX, SCHEMA = "index.json", 1
ROWS, GROUP_ROWS = 100_000, 1024
_OPEN_FILES, _KEPT_GROUPS = 16, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, nargs="?", help="folder to make; default SOURCE.shards")
    parser.add_argument("--rows", type=whole(1), default=ROWS, help="of a shard (%(default)s)")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Split a manifest; rows that training would leave out are left out now."""
    source_bytes = args.source.stat().st_size if args.source.is_file() else 0

    def give(batch: Batch, _: Any) -> Result:
        keep, wrong = check_rows(batch)
        return (batch if not wrong else batch.take(keep)), wrong

    plan = Plan(
        "shard",
        args.source,
        {"rows": args.rows},
        required=REQUIRED,
        give=give,
        layout=lambda schema: ShardFormat(schema, args.rows, source_bytes),
    )
    out = args.out or shard_folder(args.source)
    done = run_plan(plan, out, Options.of(args))
    print(f"{out}: {done.rows:,} rows in {-(-done.rows // args.rows):,} shards")
    tell_left_out(done.wrong)
    return done.exit_code


def check_rows(batch: Batch) -> tuple[list[int], list[WrongRow]]:
    """Places of the rows that `read_manifest` would keep, and the others with its reasons."""
    wrong: list[WrongRow] = []
    check = RowCheck(batch.lines, wrong)
    check_batch(check, batch)
    return np.flatnonzero(check.keep).tolist(), sorted(wrong, key=lambda row: row.line)


class ShardFormat(ParquetFormat):
    """The whole is a folder: 00001.parquet, … and the index, which is written last."""

    def __init__(self, schema: Any, rows: int, source_bytes: int) -> None:
        super().__init__(schema, min(GROUP_ROWS, rows))
        self._rows, self._source_bytes = rows, source_bytes

    def join(self, pieces: Sequence[Path], out: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        out.mkdir()
        counts = []
        tables = regroup(self.batches(pieces), self.schema, self._rows)
        for number, table in enumerate(tables, 1):
            path = out / f"{number:05d}.parquet"
            pq.write_table(table, path, row_group_size=self.group_rows)
            sync(path)
            counts.append(table.num_rows)
        if not counts:
            pq.write_table(pa.Table.from_batches([], self.schema), out / "00001.parquet")
            counts = [0]
        index = {
            "schema": SCHEMA,
            "rows": counts,
            "group_rows": self.group_rows,
            "columns": self.schema.names,
            "source_bytes": self._source_bytes,
        }
        (out / INDEX).write_text(json.dumps(index), encoding="utf-8")
        sync(out / INDEX)


def shard_folder(source: Path) -> Path:
    """Where the shards of a manifest lie."""
    return source.with_suffix(".shards")


def find_shards(source: Path) -> Path:
    """The folder itself, or the one beside a manifest file. Raises ManifestError."""
    if source.is_dir():
        return source
    folder = shard_folder(source)
    if not folder.is_dir():
        raise ManifestError(
            f"{folder} is not there, which memory_efficient reads instead of {source.name}",
            hint=f"python -m trainer.data shard {source}",
        )
    if source.is_file() and _index(folder).get("source_bytes") != source.stat().st_size:
        raise ManifestError(
            f"{folder} was made from another {source.name} than is there now",
            hint=f"python -m trainer.data shard {source} --force",
        )
    return folder


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = read_object(folder / INDEX)
        rows, group = index["rows"], index["group_rows"]
        good = index["schema"] == SCHEMA and isinstance(group, int) and group > 0
        if not good or not all(isinstance(count, int) and count >= 0 for count in rows):
            raise ValueError
    except FileNotFoundError:
        raise ManifestError(f"{folder} is a folder, and none that `shard` has made") from None
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
    values = {name: reader.numbers(name) for name in (*NUMBERS, "fps") if name in reader.names}
    wrong: list[WrongRow] = []
    check = RowCheck(range(1, reader.rows + 1), wrong)
    frames, height, width = (check.whole(name, values[name]) for name in NUMBERS)
    fps = check.rates(values.get("fps"))
    if wrong:  # `shard` lets none through
        raise ManifestError(f"{folder} is damaged: row {wrong[0]}")
    others = [name for name in reader.names if name not in (*REQUIRED, "fps")]
    return Manifest(
        source=folder,
        root=Path(root) if root is not None else folder.resolve().parent,
        paths=ShardTexts(reader, "path"),
        texts=ShardTexts(reader, "text"),
        num_frames=frames,
        height=height,
        width=width,
        fps=fps,
        extra={name: ShardColumn(reader, name) for name in others},
    )


def texts_of_shards(folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Paths and texts alone, on disk. Raises ManifestError for a folder that is not whole."""
    reader = ShardReader(folder)
    return ShardTexts(reader, "path"), ShardTexts(reader, "text")


class ShardReader:
    """Row groups by number, the last ones kept. For many threads of one process."""

    def __init__(self, folder: Path) -> None:
        index = _index(folder)
        self._paths = [folder / f"{number + 1:05d}.parquet" for number in range(len(index["rows"]))]
        self._ends = np.cumsum(index["rows"])
        self._group_rows = int(index["group_rows"])
        self.rows = int(self._ends[-1]) if len(self._ends) else 0
        self._lock = threading.Lock()
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int, str], Any] = OrderedDict()
        self.names: list[str] = []
        for shard, count in enumerate(index["rows"]):
            file = self._file(shard)
            self.names = self.names or list(file.schema_arrow.names)
            if file.metadata.num_rows != count or file.schema_arrow.names != self.names:
                raise ManifestError(f"{self._paths[shard]} is not the shard that the index names")
        require(folder, self.names, REQUIRED)

    def numbers(self, name: str) -> Any:
        """A whole column of numbers."""
        parts = []
        for shard in range(len(self._paths)):
            table = self._guard(shard, lambda file: file.read(columns=[name]))
            parts.append(table.column(0).to_numpy())
        return np.concatenate(parts)

    def values(self, name: str, start: int, stop: int) -> Iterator[Any]:
        """Values of rows start to stop - 1."""
        row = start
        while row < stop:
            shard = int(np.searchsorted(self._ends, row, side="right"))
            first = int(self._ends[shard - 1]) if shard else 0
            group = (row - first) // self._group_rows
            array = self._group(shard, group, name)
            base = first + group * self._group_rows
            part = array.slice(row - base, min(stop, base + len(array)) - row)
            yield from part.to_pylist()
            row += len(part)

    def _group(self, shard: int, group: int, name: str) -> Any:
        key = (shard, group, name)
        with self._lock:
            found = self._groups.get(key)
            if found is None:
                table = self._guard(shard, lambda file: file.read_row_group(group, columns=[name]))
                found = self._groups[key] = table.column(0).combine_chunks()
                if len(self._groups) > _KEPT_GROUPS:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(key)
            return found

    def _file(self, shard: int) -> Any:
        import pyarrow.parquet as pq

        found = self._files.get(shard)
        if found is None:
            found = self._guard(
                shard, lambda path: pq.ParquetFile(path, pre_buffer=False), opened=False
            )
            self._files[shard] = found
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(shard)
        return found

    def _guard(self, shard: int, work: Callable[[Any], Any], opened: bool = True) -> Any:
        import pyarrow as pa

        path = self._paths[shard]
        try:
            return work(self._file(shard) if opened else path)
        except FileNotFoundError:
            raise ManifestError(f"{path} is not there, and the index names it") from None
        except (pa.ArrowException, OSError) as error:
            raise ManifestError(f"{path} cannot be read: {first_line(error)}") from None


class ShardColumn(Sequence[Any]):
    """A column on disk."""

    def __init__(self, reader: ShardReader, name: str) -> None:
        self._reader, self._name = reader, name

    def __len__(self) -> int:
        return self._reader.rows

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, stop, step)]
            return list(self._reader.values(self._name, start, stop))
        at = int(index)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(index)
        return next(self._reader.values(self._name, at, at + 1))

    def __iter__(self) -> Iterator[Any]:
        return self._reader.values(self._name, 0, len(self))


class ShardTexts(ShardColumn):
    """As `ShardColumn`, an empty cell being the empty text."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return [text or "" for text in found] if isinstance(index, slice) else found or ""

    def __iter__(self) -> Iterator[str]:
        return (text or "" for text in super().__iter__())
