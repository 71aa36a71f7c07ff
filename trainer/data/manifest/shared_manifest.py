"""A manifest read once on each machine.

With captions in memory numbers and texts are shared. Of shards only the numbers are: their texts
stay on disk, and every rank opens the files (1.3 million rows: 0.02 s).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.manifest.manifest import NUMBERS, Manifest
from trainer.data.manifest.read import read_manifest
from trainer.data.manifest.shared import Ranks, map_array, once, save_array
from trainer.data.manifest.texts import MappedTexts

_BLOCK = 1 << 14  # rows
_ARRAYS = (*NUMBERS, "fps")
_TEXTS = ("paths", "texts")


def read_once(
    ranks: Ranks, path: Path, root: Path | None = None, memory_efficient: bool = False
) -> tuple[Manifest, list[str]]:
    """`read_manifest` for all ranks (collective), and what to say where it could not be shared.

    Raises what it raises, on all ranks. Columns that training does not use are not shared.
    """

    def read() -> Manifest:
        return read_manifest(path, root=root, memory_efficient=memory_efficient)

    form = ShardsForm() if memory_efficient or path.is_dir() else ManifestForm()
    return once(ranks, read, form)


class ManifestForm:
    """Numbers and texts in files."""

    name = "the manifest"

    def size(self, made: Manifest) -> int:
        """By the lengths of a thousand rows."""
        count = len(made)
        rows = range(0, count, max(1, count // 1000))
        texts = [
            len(column[row].encode("utf-8", "surrogateescape"))
            for row in rows
            for column in (made.paths, made.texts)
        ]
        return int(count * (32 + 2 * sum(texts) / len(rows))) + (1 << 20)

    def write(self, made: Manifest, folder: Path) -> Any:
        for name in _ARRAYS:
            save_array(folder, name, getattr(made, name))
        for name in _TEXTS:
            ends = np.zeros(len(made) + 1, np.int64)
            with (folder / f"{name}.bin").open("wb") as file:
                for start, encoded in _encoded(getattr(made, name)):
                    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
                    ends[start + 1 : start + 1 + len(encoded)] = ends[start] + np.cumsum(lengths)
                    file.write(b"".join(encoded))
                file.write(b"\0")  # a file of no bytes cannot be mapped
            save_array(folder, name, ends)
        return made.source, made.root, made.wrong

    def map(self, facts: Any, folder: Path) -> Manifest:
        def texts(name: str) -> MappedTexts:
            data = np.asarray(np.memmap(folder / f"{name}.bin", np.uint8, "r"))
            return MappedTexts(data, map_array(folder, name))

        source, root, wrong = facts
        paths, captions = (texts(name) for name in _TEXTS)
        frames, height, width, fps = (map_array(folder, name) for name in _ARRAYS)
        return Manifest(source, root, paths, captions, frames, height, width, fps, wrong=wrong)


class ShardsForm:
    """Numbers in files, texts where they are."""

    name = "the manifest"

    def size(self, made: Manifest) -> int:
        return 16 * len(made) + (1 << 20)

    def write(self, made: Manifest, folder: Path) -> Any:
        for name in _ARRAYS:
            save_array(folder, name, getattr(made, name))
        return made.source, made.root

    def map(self, facts: Any, folder: Path) -> Manifest:
        from trainer.data.manifest.shards import texts_of_shards  # here: it needs pyarrow

        source, root = facts
        paths, captions = texts_of_shards(source)
        frames, height, width, fps = (map_array(folder, name) for name in _ARRAYS)
        return Manifest(source, root, paths, captions, frames, height, width, fps)


def _encoded(texts: Sequence[str]) -> Iterator[tuple[int, list[bytes]]]:
    for start in range(0, len(texts), _BLOCK):
        block = texts[start : start + _BLOCK]
        yield start, [text.encode("utf-8", "surrogateescape") for text in block]
