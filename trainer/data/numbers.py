"""A manifest's numbers without its texts: what buckets, plans and statistics need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from trainer.data.manifest import (
    MAX_WRONG_ROWS,
    NUMBERS,
    REQUIRED,
    Manifest,
    ManifestError,
    RowCheck,
    WrongRow,
    refuse_too_many,
)
from trainer.data.tables import Batch, open_table

_READ_ROWS = 16_384


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


def read_numbers(
    source: Path,
    max_wrong_rows: int = MAX_WRONG_ROWS,
    progress: Callable[[float, int], None] = lambda share, rows: None,
) -> Manifest:
    """As `read_manifest`, same rows left out, without paths and texts: 16 bytes of memory a row.

    `progress` gets (share read, rows). Raises ManifestError as `read_manifest` does.
    """
    if source.is_dir():
        from trainer.data.shards import read_shards

        return read_shards(source)
    parts: dict[str, list[Any]] = {name: [] for name in (*NUMBERS, "fps")}
    wrong: list[WrongRow] = []
    rows = 0
    with contextlib.closing(open_table(source, REQUIRED)) as table:
        while (batch := table.read(_READ_ROWS)) is not None:
            check = RowCheck(batch.lines, wrong)
            found = check_batch(check, batch)
            for name, values in found.items():
                parts[name].append(values[check.keep])
            rows += len(batch)
            progress(table.share, rows)
        wrong += table.wrong
    refuse_too_many(source, wrong, max_wrong_rows)
    arrays: dict[str, Any] = {
        name: np.concatenate(values) if values else np.zeros(0) for name, values in parts.items()
    }
    count = len(arrays["height"])
    if not count:
        raise ManifestError(f"{source}: no usable row" + (f"; line {wrong[0]}" if wrong else ""))
    texts = Unread(count)
    return Manifest(
        source=source,
        root=source.resolve().parent,
        paths=texts,
        texts=texts,
        num_frames=arrays["num_frames"],
        height=arrays["height"],
        width=arrays["width"],
        fps=arrays["fps"],
        wrong=tuple(wrong),
    )


def check_batch(check: RowCheck, batch: Batch) -> dict[str, Any]:
    """The numbers of a batch; rows that `read_manifest` would leave out are marked in `check`."""
    found: dict[str, Any] = {name: check.whole(name, batch.column(name)) for name in NUMBERS}
    found["fps"] = check.rates(batch.column("fps") if "fps" in batch.names else None)
    check.paths([value or "" for value in batch.column("path")])
    check.texts([value or "" for value in batch.column("text")])
    return found
