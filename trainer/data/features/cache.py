"""A feature cache as training reads it: latents and captions that were encoded once.

No VAE and no text encoder is built here, and neither transformers nor diffusers is imported.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features import clip_files, index
from trainer.data.features.files import LATENTS, TEXTS, FeaturesError, damaged
from trainer.data.features.units import Grid, Keys, find_units, frames_of, keys_of
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import content_ids
from trainer.weights.tensorfile import DTYPES

# K chunks · P 1, or 2: mean and log-variance · C channels · Z,h,w latent frames, height, width
NETWORK_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # of a config's dtype
_OPEN_FILES = 64
_MAKE = "python -m trainer.data encode CONFIG {folder} --data-path MANIFEST"


class Features:
    """A finished cache. Raises FeaturesError for what is missing, damaged or of another version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (document := index.read_document(folder)) is None:
            text, hint = f"there is no feature cache at {folder}", _MAKE.format(folder=folder)
            if any(folder.glob("*.safetensors")):
                text = f"{folder} is a feature cache that is not finished"
                hint += " continues where it stopped"
            raise FeaturesError(text, hint=hint)
        self.document = document
        self.key: dict[str, Any] = document["key"]
        self.grid = Grid.of(document["grid"])
        # 2 where mean and log-variance are kept, 1 of a sample or of a VAE that has no spread
        self.copies = 2 if self.key["latents"]["kind"] == index.POSTERIOR else 1
        self.text_channels: int = document["text_channels"]
        self.encoder_channels: int = document["encoder_channels"]  # before a caption embedder
        self.max_tokens: int = self.key["text"]["model_max_length"]  # features are padded to it
        self.latent_dtype = DTYPES[self.key["latents"]["dtype"]]
        self.text_dtype = DTYPES[document["text_dtype"]]
        self.files: list[tuple[str, int]] = [(str(n), int(b)) for n, b, _ in document["shards"]]
        tables = index.read_index(folder, document)
        self.clips, self.captions = tables[LATENTS], tables[TEXTS]
        self.bad = index.bad_clips(document)

    def check_files(self) -> None:
        """Raise FeaturesError naming the first shard that is missing or of another size."""
        for name, size in self.files:
            path = self.folder / name
            try:
                actual = path.stat().st_size
            except OSError as error:
                raise damaged(path, error.strerror or str(error)) from None
            if actual != size:
                raise damaged(path, f"it has {actual:,} bytes instead of {size:,}")

    def check_rows(self, manifest: Manifest, buckets: Buckets) -> None:
        """Raise FeaturesError naming the first missing clip or caption that training may want."""
        interval, most = self.key["frames"]["frame_interval"], self.key["latents"]["max_frames"]
        units = find_units(manifest, buckets, interval, self.grid)
        ids, frames = content_ids(manifest), frames_of(manifest.num_frames, interval, most)
        missing: list[tuple[int, str]] = []
        for _, places, there in index.lacking(units, ids, frames, self.clips):
            for place, had in zip(places.tolist(), there.tolist(), strict=True):
                row = int(units.rows[place])
                size = (int(units.height[place]), int(units.width[place]))
                if (int(ids[row]), *size) in self.bad:
                    continue
                what = f"{manifest.locate(row)} at {size[0]}x{size[1]}"
                if had >= 0:
                    what += f" with {frames[row]} frames ({had} are there)"
                missing.append((row, what))
        if missing:
            count = len({row for row, _ in missing})
            raise self.lacks(f"{count:,} of {len(manifest):,} clips, first {min(missing)[1]}")
        used = np.unique(units.rows)
        keys = np.array([index.text_key(manifest.texts[row]) for row in used.tolist()], np.uint64)
        absent = used[self.captions.find(keys) < 0]
        if len(absent):
            row = int(absent[0])
            raise self.lacks(
                f"the captions of {len(absent):,} clips, first that of "
                f"{manifest.locate(row)} ({manifest.texts[row][:60]!r})"
            )

    def check_clips(
        self,
        manifest: Manifest,
        buckets: Buckets,
        workers: int,
        clip_timeout_s: float,
        only: NDArray[np.int64] | None = None,
        lives: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Raise FeaturesError when the clips, all or the rows `only`, are other files than those
        that were encoded, as far as they are here; returns notes on what could not be compared."""
        interval, ids = self.key["frames"]["frame_interval"], content_ids(manifest)
        units = find_units(manifest, buckets, interval, self.grid)
        limits = workers, clip_timeout_s, clip_files.SAMPLED
        compared = clip_files.compare(manifest, units, ids, self.clips, *limits, only, lives)
        for row, how in compared.changed.items():
            raise FeaturesError(
                f"{self.folder} has features of other files than {len(compared.changed):,} of the "
                f"{compared.looked_at:,} clips compared, first {manifest.locate(row)} ({how})",
                hint=_MAKE.format(folder=self.folder) + " makes them again; features of another "
                "data set need a folder of their own",
            )
        return compared.notes(self.folder)

    def lacks(self, what: str) -> FeaturesError:
        return FeaturesError(
            f"{self.folder} lacks {what}", hint=_MAKE.format(folder=self.folder) + " adds them"
        )

    def shards(self) -> Shards:
        return Shards(self)


class Shards:
    """Reads chunks and captions and compares their checksums. For one thread."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._open: OrderedDict[int, int] = OrderedDict()

    def window(
        self, clip_id: int, height: int, width: int, window: int, start: int, interval: int
    ) -> tuple[Tensor, float] | None:
        """Latent [P, C, Z, h, w] of `window` frames from Grid.window's place on, as stored, and the
        frame rate; None where the clip is missing. Raises FeaturesError naming a damaged shard."""
        features, grid = self._features, self._features.grid
        lengths = grid.lengths(window)  # whole chunks first
        ids: Keys = np.full(len(lengths), clip_id, np.uint64)
        places = features.clips.find(keys_of(ids, height, width, np.array(lengths)))
        columns = features.clips.columns
        if (places < 0).any() or columns["frames"][places].min() < window:
            return None
        first = grid.window(start, interval, window, int(columns["frames"][places[0]]))
        whole, rest = grid.pieces(window)
        parts = []
        if whole:
            parts.append(self.latents(int(places[0]), first, whole))
        if rest:
            parts.append(self.latents(int(places[-1]), first + whole, 1))
        # K chunks of Z frames one after another: [P, C, K Z, h, w]
        joined = [part.permute(1, 3, 0, 2, 4, 5).flatten(2, 3) for part in parts]
        fps = float(columns["fps"][places[0]])
        return joined[0] if len(joined) == 1 else torch.cat(joined, 2), fps

    def latents(self, place: int, first: int, count: int) -> Tensor:
        """Chunks [K, P, Z, C, h, w] of an entry, in the stored dtype."""
        features, grid = self._features, self._features.grid
        columns = features.clips.columns
        length, height, width = (int(columns[n][place]) for n in ("length", "height", "width"))
        edges = (height // grid.edge, width // grid.edge)
        shape = (features.copies, grid.latents(length), grid.channels, *edges)
        size = int(np.prod(shape)) * features.latent_dtype.itemsize
        at = int(columns["offset"][place]) + first * size
        crcs = features.clips.crcs(place, first, count)
        data = self._read(int(columns["shard"][place]), at, size, crcs)
        return torch.frombuffer(data, dtype=features.latent_dtype).view(count, *shape)

    def text(self, text: str) -> Tensor | None:
        """Features [tokens, C] of a caption; None when it is not there."""
        features = self._features
        keys: Keys = np.array([index.text_key(text)], np.uint64)
        place = int(features.captions.find(keys)[0])
        if place < 0:
            return None
        columns = features.captions.columns
        tokens = int(columns["count"][place])
        size = tokens * features.text_channels * features.text_dtype.itemsize
        crcs = features.captions.crcs(place, 0, 1)
        data = self._read(int(columns["shard"][place]), int(columns["offset"][place]), size, crcs)
        return torch.frombuffer(data, dtype=features.text_dtype).view(tokens, -1)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _read(self, shard: int, at: int, size: int, crcs: list[int]) -> bytearray:
        """`len(crcs)` neighbours of `size` bytes each."""
        name, whole = self._features.files[shard]
        path = self._features.folder / name
        if not 0 <= at < at + size * len(crcs) <= whole:
            raise damaged(path, f"the index has bytes from {at:,} on there, it has {whole:,}")
        try:
            data = bytearray(size * len(crcs))
            view, got = memoryview(data), 0
            while got < len(data):  # a network's file system may give less than asked for
                more = os.preadv(self._descriptor(shard, path), [view[got:]], at + got)
                if not more:
                    raise damaged(path, f"it ends before byte {at + len(data):,}")
                got += more
        except OSError as error:
            raise damaged(path, error.strerror or str(error)) from None
        for number, crc in enumerate(crcs):
            if zlib.crc32(view[number * size : (number + 1) * size]) != crc:
                raise damaged(path, f"bytes from {at + number * size:,} on are not those written")
        return data

    def _descriptor(self, shard: int, path: Path) -> int:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open[shard] = descriptor
        actual, size = os.fstat(descriptor).st_size, self._features.files[shard][1]
        if actual != size:
            raise damaged(path, f"it has {actual:,} bytes instead of {size:,}")
        if len(self._open) > _OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor
