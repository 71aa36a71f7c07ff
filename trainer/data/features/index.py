"""The index of a feature cache: where each latent and caption lies, from the shards' own tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.features import files
from trainer.data.features.files import LATENTS, NUMBERS, TEXTS, FeaturesError, Piece, damaged
from trainer.data.features.units import Grid, Keys, Units, is_count, keys_of
from trainer.runlog.atomic_file import sha256_of

SCHEMA = 1
POSTERIOR, SAMPLE, EXACT = "posterior", "sample", "exact"  # what a latent is
_COUNTS = ("job", "latents", "captions", "bytes", "text_channels", "encoder_channels")
# Columns of a shard's own table, those of eight bytes first, so that all are aligned; the index
# adds shard and offset. `crc_at` points into `crc`.
COLUMNS = {
    LATENTS: {
        "key": "U64",
        "crc_at": "I64",
        **dict.fromkeys(("bytes", "mtime"), "I64"),  # of the clip's file, 0: not kept
        "file": "U64",  # a hash of it
        **dict.fromkeys(("height", "width", "length", "frames", "count"), "I32"),
        "fps": "F32",
    },
    TEXTS: {"key": "U64", "crc_at": "I64", "count": "I32"},
}
_LATER = ("bytes", "mtime", "file")  # columns that caches from before lack
_OWN_FILE = re.compile(r"[\w-]+\.safetensors")
_ANEW = "encode into another folder"
_PLACES = {"shard": "I32", "offset": "I64"}


@dataclass(frozen=True)
class Table:
    """Entries of one kind, sorted by key; columns [N], mapped from the index file."""

    columns: Mapping[str, NDArray[Any]]
    crc: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.columns["key"])

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Place of each key, -1 for one that is not there."""
        own = self.columns["key"]
        if not len(own):
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(own, keys), len(own) - 1)
        return np.where(own[places] == keys, places, -1)

    def crcs(self, place: int, first: int, count: int) -> list[int]:
        start = int(self.columns["crc_at"][place]) + first
        return self.crc[start : start + count].tolist()


def lacking(
    units: Units, ids: Keys, frames: NDArray[np.int64], table: Table
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """(bit of a stream, units whose chunks the table lacks, frames that it has of each, or -1)."""
    for bit, length, places in units.each_stream():
        rows = units.rows[places]
        found = table.find(keys_of(ids[rows], units.height[places], units.width[places], length))
        there = np.full(len(found), -1, np.int64)
        there[found >= 0] = table.columns["frames"][found[found >= 0]]
        lack = (there != frames[rows]) & (frames[rows] >= length)
        yield bit, places[lack], there[lack]


def text_key(text: str) -> int:
    """64 bits of a caption."""
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def empty_tables() -> dict[str, Table]:
    return {kind: _joined(kind, [], []) for kind in COLUMNS}


def _joined(kind: str, parts: list[dict[str, Any]], crcs: list[NDArray[np.uint32]]) -> Table:
    """The tables of shards as one, sorted; of entries with one key the newest."""
    types = {**COLUMNS[kind], **_PLACES}
    columns = {
        n: np.concatenate([np.empty(0, NUMBERS[types[n]]), *(p[n] for p in parts)]) for n in types
    }
    order = np.argsort(columns["key"], kind="stable")
    keys = columns["key"][order]
    order = order[np.append(keys[1:] != keys[:-1], True)[: len(keys)]]
    columns = {name: column[order] for name, column in columns.items()}
    return Table(columns, np.concatenate([np.empty(0, np.uint32), *crcs]))


def write_index(folder: Path, document: Mapping[str, Any], shards: Sequence[Path]) -> None:
    """Write the shards' index and `features.json`. Raises FeaturesError naming a damaged shard."""
    parts: dict[str, list[dict[str, Any]]] = {LATENTS: [], TEXTS: []}
    crcs: dict[str, list[NDArray[np.uint32]]] = {LATENTS: [], TEXTS: []}
    listed: list[list[Any]] = []  # name, bytes, hash of the header
    bad: dict[str, dict[str, Any]] = {}
    good: list[str] = []
    for number, path in enumerate(shards):
        header = files.read_header(path)
        kind = str(header.meta.get("kind"))
        if kind not in COLUMNS:
            raise damaged(path, f"it holds {kind}")
        columns = {n: np.array(_column(header, path, "index", kind, n)) for n in COLUMNS[kind]}
        columns["crc_at"] = columns["crc_at"] + sum(map(len, crcs[kind]))
        columns["shard"] = np.full(len(columns["key"]), number, np.int32)
        tensors = header.tensors.items()
        offsets = {n: at for n, (_, _, at, _) in tensors if not n.startswith("index.")}
        if len(offsets) != len(columns["key"]):
            raise damaged(path, f"it has {len(offsets)} tensors for {len(columns['key'])} entries")
        columns["offset"] = np.fromiter(offsets.values(), np.int64, len(offsets))
        parts[kind].append(columns)
        crcs[kind].append(np.array(header.array(path, "index.crc")))
        bad |= {f"{r['id']}.{r['height']}x{r['width']}": r for r in header.meta.get("bad", [])}
        if bad:  # some may have been encoded since
            good += [name.rpartition(".")[0] for name in offsets]
        listed.append([path.name, header.size, header.digest])
    for name in good:
        bad.pop(name, None)
    tables = {kind: _joined(kind, parts[kind], crcs[kind]) for kind in COLUMNS}
    pieces = []
    for kind, table in tables.items():
        dtypes = {**COLUMNS[kind], **_PLACES}.items()
        pieces += [Piece.of(f"{kind}.{name}", table.columns[name], dtype) for name, dtype in dtypes]
        pieces.append(Piece.of(f"{kind}.crc", table.crc, "U32"))
    pieces.sort(key=lambda piece: "64" not in piece.kind)  # so that all are aligned
    index = folder / f"index-{document['job']:02d}.safetensors"
    files.write(index, pieces, {"kind": "index"})
    files.write_json(
        folder / files.DOCUMENT,
        {
            "schema": SCHEMA,
            **document,
            "index": index.name,
            "index_sha256": sha256_of(index),
            "latents": len(tables[LATENTS]),
            "captions": len(tables[TEXTS]),
            "bytes": sum(size for _, size, _ in listed),
            "shards": listed,
            "bad": list(bad.values()),
        },
    )
    for old in folder.glob("index-*.safetensors"):
        if old != index:
            old.unlink()


def _column(header: files.Header, path: Path, table: str, kind: str, name: str) -> NDArray[Any]:
    """A column of a shard's table or of the index; zeros where it came later than the file."""
    if name in _LATER and f"{table}.{name}" not in header.tensors:
        return np.zeros(len(header.array(path, f"{table}.key")), NUMBERS[COLUMNS[kind][name]])
    return header.array(path, f"{table}.{name}")


def read_document(folder: Path) -> dict[str, Any] | None:
    """features.json; None without a finished cache. Raises FeaturesError for another version."""
    path = folder / files.DOCUMENT
    if (document := files.read_json(path)) is None:
        return None
    if document.get("schema") != SCHEMA:
        version = document.get("schema")
        raise FeaturesError(f"{path} is of version {version}, this reads {SCHEMA}", hint=_ANEW)
    try:
        # names of files beside it, never elsewhere
        whole = _OWN_FILE.fullmatch(document["index"]) is not None
        for name, size, header in document["shards"]:
            is_own = _OWN_FILE.fullmatch(name) is not None
            whole &= is_own and int(size) >= 0 and isinstance(header, str)
        for row in document["bad"]:
            int(row["id"], 16), int(row["height"]), int(row["width"]), str(row["reason"])
        Grid.of(document["grid"])
        whole &= _is_key(document["key"]) and document["text_dtype"] in files.STORED.values()
        whole &= all(type(document[n]) is int and document[n] >= 0 for n in _COUNTS)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        whole = False
    if not whole:
        raise FeaturesError(f"{path} is damaged", hint=_ANEW)
    return document


def bad_clips(document: Mapping[str, Any]) -> dict[tuple[int, int, int], str]:
    """(content id, height, width) of clips that could not be read, and why."""
    return {(int(r["id"], 16), r["height"], r["width"]): str(r["reason"]) for r in document["bad"]}


def _is_key(key: Mapping[str, Any]) -> bool:
    """Whether a key says what a run reads of it (key.py makes it). Raises KeyError, TypeError."""
    vae, text, latents = key["vae"], key["text"], key["latents"]
    hashes = (vae.get("weights"), text.get("weights"), key["captions"]["embedder"])
    counts = [text["model_max_length"], key["frames"]["frame_interval"], latents["max_frames"]]
    return (
        all(isinstance(word, str) for word in (vae["type"], text["type"], key["dtype"]))
        and all(isinstance(digest, str | None) for digest in hashes)
        and all(map(is_count, counts if counts[2] is not None else counts[:2]))
        and latents["kind"] in (POSTERIOR, SAMPLE, EXACT)
        and latents["dtype"] in files.STORED.values()
    )


def read_index(folder: Path, document: Mapping[str, Any]) -> dict[str, Table]:
    """Both tables. Raises FeaturesError when the file is not the one that was written."""
    path, count = folder / str(document["index"]), len(document["shards"])
    header = files.read_header(path)
    if sha256_of(path) != document["index_sha256"]:
        raise damaged(path, "its bytes are not those that were written")
    tables = {}
    for kind, names in COLUMNS.items():
        columns = {n: _column(header, path, kind, kind, n) for n in {**names, **_PLACES}}
        tables[kind] = Table(columns, header.array(path, f"{kind}.crc"))
        shards = columns["shard"]
        fits = {column.shape for column in columns.values()} == {(len(shards),)}
        if not fits or (len(shards) and not 0 <= shards.min() <= shards.max() < count):
            raise damaged(path, f"its columns of {kind} do not fit together")
    return tables
