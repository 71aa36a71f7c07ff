"""`shard`: a manifest as a folder of small parquet files, read without its texts in memory.

python -m trainer.data shard manifest.parquet                # makes manifest.shards beside it
python -m trainer.train stage1 --dataset.data-path manifest.shards

Numbers are read whole (16 bytes a row). A path or caption is read with its row group of 1,024 rows
when it is wanted, and the last groups are kept: 10 million captions of 500 bytes stay 5 GB on disk.
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.command_line import whole
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.manifest import REQUIRED, ManifestError, WrongRow
from trainer.data.manifest.rewrite import Rewrite, Rows, rewriting
from trainer.data.manifest.row_check import RowCheck
from trainer.data.manifest.shards import INDEX, SCHEMA, shard_folder, source_facts
from trainer.data.manifest.sql import Source, unescaped
from trainer.runlog.atomic_file import sync, write_synced
from trainer.runlog.units import counted

ROWS, GROUP_ROWS = 100_000, 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, nargs="?", help="folder to make; default SOURCE.shards")
    parser.add_argument("--rows", type=whole(1), default=ROWS, help="of a shard (%(default)s)")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Split a manifest; rows that training would leave out are left out now."""
    args.out = args.out or shard_folder(args.source)
    with rewriting(args, [args.source], is_folder=True) as made:
        facts = source_facts(args.source)
        source = made.add(args.source, REQUIRED)
        part = Rows(source, _training_rows(made, source))
        schema = made.schema([part], source.names)
        folder, group_rows = made.work.whole, min(GROUP_ROWS, args.rows)
        folder.mkdir()
        counts: list[int] = []
        for table in made.tables([part], schema, args.rows):
            counts.append(table.num_rows)
            path = folder / f"{len(counts):05d}.parquet"
            pq.write_table(table, path, row_group_size=group_rows)
            sync(path)
        index = {
            "schema": SCHEMA,
            "rows": counts,
            "group_rows": group_rows,
            "columns": schema.names,
            "source": os.path.relpath(args.source.resolve(), args.out.parent.resolve()),
            **facts,
        }
        if args.source.stat().st_mtime_ns != facts["source_mtime_ns"]:
            raise ManifestError(f"{args.source} was changed while it was read")
        write_synced(folder / INDEX, json.dumps(index))
    shards = -(-made.rows // args.rows)
    return made.report(f"{counted(made.rows, 'row')} in {counted(shards, 'shard')}")


def _training_rows(made: Rewrite, source: Source) -> NDArray[np.bool_]:
    """Marks the rows that `read_manifest` would keep; the others are left out."""
    names = [name for name in (*REQUIRED, "fps") if name in source.names]
    columns = ", ".join(map(source.column, names))
    parts = [np.zeros(0, bool)]
    wrong: list[WrongRow] = []
    start = 0
    for batch in made.database.stream(f"SELECT {columns} FROM {source.view}"):
        cells = dict(zip(names, batch.columns, strict=True))
        if source.is_escaped:
            for name in ("path", "text"):
                cells[name] = [unescaped(text) for text in cells[name].to_pylist()]
        check = RowCheck(range(start, start + batch.num_rows), wrong)
        check.columns(names, cells.__getitem__)
        parts.append(check.keep)
        start += batch.num_rows
    made.leave_out(source, {row.line: row.reason for row in wrong})
    return np.concatenate(parts)
