"""Convert a recording of clusterctl 0.1: `python -m dashboards.recording.convert OLD NEW`.

The old file is a list of blocks: a header, then three sections (zlib). `OLD.1`, which holds the
first half of a long recording, is converted too.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from dashboards.recording import file_format

MARK = b"\xc7BLK"
HEAD = struct.Struct("<4scIIIIdd")  # mark, kind, checksum, lengths of three sections, times
OLD_KEY, OLD_DEEP = b"k", b"K"  # other blocks hold rounds

# Classes and fields that have other names now.
CLASSES = {"Sign": "Breach", "Kept": "RuleMemory"}
FIELDS = {("Track", "sign"): "breach", ("AlertBook", "kept"): "memory"}

Row = tuple[float, str, bytes]


def old_rows(path: Path) -> Iterator[list[Row]]:
    """Rows of each block; an empty list for a damaged one. Raises `OSError`, `UsageError`."""
    with path.open("rb") as file:
        if file.read(len(file_format.OLD_MAGIC)) != file_format.OLD_MAGIC:
            raise UsageError(f"{path} is not a recording of clusterctl 0.1")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    at = len(file_format.OLD_MAGIC)
    while (found := data.find(MARK, at)) >= 0:
        if found != at:
            yield []
        rows, at = _block(data, found)
        # Only a writer that was killed leaves a block that ends behind the end of the file.
        if rows or at < len(data):
            yield rows


def _block(data: mmap.mmap, at: int) -> tuple[list[Row], int]:
    """(rows, where the next block begins); no rows of a block that is torn or damaged."""
    begin = at + HEAD.size
    if begin > len(data):
        return [], len(data)
    _, kind, checksum, *lengths, first_s, last_s = HEAD.unpack(data[at:begin])
    end = begin + sum(lengths)
    follows = data[end : end + len(MARK)]
    if end > len(data):
        return [], at + 1 if data.find(MARK, at + 1) >= 0 else len(data)
    if not MARK.startswith(follows) or not 0.0 <= first_s <= last_s <= file_format.LATEST_S:
        return [], at + 1
    if zlib.crc32(data[begin:end]) != checksum:
        return [], end
    texts = []
    for length, name in zip(
        lengths, (file_format.RUN, file_format.NODES, file_format.HISTORY), strict=True
    ):
        unpacker = zlib.decompressobj()
        texts.append(unpacker.decompress(data[begin : begin + length], file_format.MAX_BYTES[name]))
        begin += length
        if not unpacker.eof:
            return [], end
    try:
        return _rows(kind, first_s, texts), end
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return [], end


def _rows(kind: bytes, at_s: float, texts: Sequence[bytes]) -> list[Row]:
    head = json.loads(texts[0])
    if kind in (OLD_KEY, OLD_DEEP):
        new = file_format.DEEP if kind == OLD_DEEP else file_format.KEY
        new = file_format.BEGIN if head.get("begins") else new
        state = file_format.as_json(_renamed(head))
        names = (new, file_format.NODES, file_format.HISTORY)
        return [(at_s, *row) for row in zip(names, (state, *texts[1:]), strict=True)]
    rows: list[Row] = []
    for (now_s, of_run), of_nodes in zip(head, json.loads(texts[1]), strict=True):
        if of_run:
            rows.append((float(now_s), file_format.RUN, file_format.as_json(of_run)))
        rows.append((float(now_s), file_format.ROUND, file_format.as_json(of_nodes)))
    return rows


def _renamed(head: dict[str, Any]) -> dict[str, Any]:
    fields = {
        CLASSES.get(kind, kind): [FIELDS.get((kind, name), name) for name in names]
        for kind, names in head["fields"].items()
    }
    return {**head, "fields": fields, "state": _with_new_classes(head["state"])}


def _with_new_classes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_new_classes(part) for key, part in value.items()}
    if isinstance(value, list) and value:
        first = CLASSES.get(value[0], value[0]) if isinstance(value[0], str) else value[0]
        return [first, *map(_with_new_classes, value[1:])]
    return value


def convert(old: Path, new: Path) -> None:
    """Raises `OSError`; `UsageError` where `old` is no old recording or `new` exists."""
    if new.exists():
        raise UsageError(f"{new} already exists; choose another name")
    first_half = old.with_name(old.name + ".1")
    paths = [first_half, old] if first_half.exists() else [old]
    appender = None
    for path in paths:
        for rows in old_rows(path):
            appender = appender or file_format.Appender(new, 1 << 62)
            for row in rows:
                appender.append(*row)
            if not rows:
                appender.insert(0.0, file_format.ROUND, b"")  # damaged here too
            elif rows[0][1] in (file_format.BEGIN, file_format.DEEP):
                appender.sync()
    if appender is None:
        raise UsageError(f"{old} holds no samples")
    appender.close()


def main(args: Sequence[str]) -> int:
    if len(args) != 2:
        print("usage: python -m dashboards.recording.convert OLD NEW", file=sys.stderr)
        return 2
    try:
        convert(Path(args[0]), Path(args[1]))
    except (OSError, UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
