"""What a job of encoding makes: clips and captions that the cache lacks, cut into shards.

A pure function of manifest, buckets, the cache's key and what the cache holds: every rank works it
out alike, whenever it is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.load import Config
from trainer.data.features.files import LATENTS, TEXTS, FeaturesError
from trainer.data.features.index import EMPTY, Table, read_document, read_index, text_key
from trainer.data.features.key import encoder_width
from trainer.data.features.units import Grid, Units, cut, find_units, frames_of, keys_of, unit_bytes
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.content import content_ids

_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_TEXT_DTYPES = {"bf16": "BF16", "fp32": "F32"}
_HEAD_BYTES = 400  # of tables and header, for each entry


@dataclass(frozen=True)
class Options:
    """What the command line says beside the config."""

    kind: str
    dtype: str
    max_frames: int | None = None
    caption_embedder: bool = False
    shard_bytes: int = 128 << 20
    workers: int = 1
    max_bad: int = 1000
    retry_bad: bool = False
    force: bool = False
    quiet: bool = True


@dataclass(frozen=True)
class Work:
    """All that a job makes; every rank works it out alike."""

    manifest: Manifest
    grid: Grid
    units: Units  # that the cache does not have
    frames: NDArray[np.int64]  # by row
    text_rows: NDArray[np.int64]  # first row of each caption that the cache does not have
    each: int  # bytes of a latent value, of both its numbers where there are two
    text_bytes: int  # of a token
    max_tokens: int
    shard_bytes: int

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return unit_bytes(self.units, self.frames, self.grid, self.each)

    @cached_property
    def text_sizes(self) -> NDArray[np.int64]:
        """About; how many tokens a caption has only the encoder knows."""
        counts = [
            min(self.max_tokens, len(self.manifest.texts[row]) // 3 + 2)
            for row in self.text_rows.tolist()
        ]
        return np.array(counts, np.int64) * self.text_bytes

    @cached_property
    def latent_shards(self) -> list[tuple[int, int]]:
        return cut(self.sizes, self.shard_bytes)

    @cached_property
    def text_shards(self) -> list[tuple[int, int]]:
        return cut(self.text_sizes, self.shard_bytes)

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        return content_ids(self.manifest)

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum() + self.text_sizes.sum()) + _HEAD_BYTES * (
            len(self.units) + len(self.text_rows)
        )


def work_of(config: Config, manifest: Manifest, out: Path, document: Mapping[str, Any]) -> Work:
    """What a job makes."""
    inputs, key = document["inputs"], document["key"]
    grid = Grid.of(document["grid"])
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    interval, most = key["frames"]["frame_interval"], key["latents"]["max_frames"]
    longest = max(cell.frames for cell in buckets.cells)
    if most is not None and most < longest:
        raise FeaturesError(f"--max-frames {most} is below a bucket's {longest} frames")
    every = find_units(manifest, buckets, interval, grid)
    tables, bad = _present(out, document["job"], inputs["retry_bad"])
    frames, ids = frames_of(manifest.num_frames, interval, most), content_ids(manifest)
    units = _missing(every, ids, frames, tables[LATENTS], bad)
    first: dict[int, int] = {}
    for row in np.unique(every.rows).tolist():
        first.setdefault(text_key(manifest.texts[row]), row)
    keys = np.fromiter(first, np.uint64, len(first))
    rows = np.fromiter(first.values(), np.int64, len(first))
    copies = 2 if key["latents"]["kind"] == "posterior" else 1
    return Work(
        manifest,
        grid,
        units,
        frames,
        rows[tables[TEXTS].find(keys) < 0],
        copies * _BYTES[key["latents"]["dtype"]],
        document["text_channels"] * _BYTES[document["text_dtype"]],
        key["text"]["model_max_length"],
        inputs["shard_bytes"],
    )


def foresee(config: Config, manifest: Manifest, out: Path, options: Options) -> str:
    """What `encode` would make, in words; nothing is written."""
    before = read_document(out) if not options.force else None
    document = {
        "job": before["job"] + 1 if before else 1,
        "key": {
            "frames": {"frame_interval": config.dataset.frame_interval},
            "latents": latents_facts(options),
            "text": {"model_max_length": config.text_encoder.model_max_length},
        },
        "grid": grid_facts(config),
        **text_facts(config, options),
        "inputs": inputs_of(config, manifest, options),
    }
    todo = work_of(config, manifest, out if before else Path("/nonexistent"), document)
    sizes: dict[str, list[int]] = {}
    for height, width, size in zip(todo.units.height, todo.units.width, todo.sizes, strict=True):
        line = sizes.setdefault(f"{height}x{width}", [0, 0])
        line[0] += 1
        line[1] += int(size)
    lines = [
        f"{name}: {count:,} clips, {size / 1e9:,.3f} GB" for name, (count, size) in sizes.items()
    ]
    texts = int(todo.text_sizes.sum())
    lines.append(f"captions: {len(todo.text_rows):,}, up to {texts / 1e9:,.3f} GB")
    shards = len(todo.latent_shards) + len(todo.text_shards)
    lines.append(f"in all up to {todo.bytes / 1e9:,.3f} GB in {shards:,} shards")
    return "\n".join(lines)


def inputs_of(config: Config, manifest: Manifest, options: Options) -> dict[str, Any]:
    """What decides a job's division, beside the cache's key and what it holds."""
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    return {
        "rows": len(manifest),
        "fingerprint": manifest.fingerprint,
        "buckets": buckets.hash,
        "shard_bytes": options.shard_bytes,
        "retry_bad": options.retry_bad,
    }


def latents_facts(options: Options) -> dict[str, Any]:
    return {"kind": options.kind, "dtype": options.dtype, "max_frames": options.max_frames}


def grid_facts(config: Config) -> dict[str, Any]:
    """See features_units.Grid; from the VAE's settings, without building it."""
    vae = config.vae
    if vae.type == "identity":
        return {"chunk": 1, "time": 1, "edge": 1, "channels": vae.channels}
    from trainer.models.vae.video import VideoVAESettings
    from trainer.weights.source import find_source

    settings = VideoVAESettings.from_dict(find_source(str(vae.from_pretrained)).config)
    chunk = vae.micro_frame_size or settings.micro_frame_size
    return {
        "chunk": chunk,
        "time": settings.temporal.factor,
        "edge": settings.spatial.factor,
        "channels": settings.temporal.embed_dim,
    }


def text_facts(config: Config, options: Options) -> dict[str, Any]:
    """Width of captions as the encoder gives and as they are stored, and their dtype."""
    text = config.text_encoder
    if text.type == "tiny_t5":
        channels = text.d_model
    else:
        channels = encoder_width(text.from_pretrained)
    stored = channels
    if options.caption_embedder:
        from trainer.data.features.captions import model_width

        stored = model_width(config)
    return {
        "encoder_channels": channels,
        "text_channels": stored,
        "text_dtype": _TEXT_DTYPES[config.dtype],
    }


def _present(
    out: Path, job: int, retry_bad: bool
) -> tuple[dict[str, Table], set[tuple[int, int, int]]]:
    """What the cache held before this job."""
    document = read_document(out)
    if document is None or document["job"] >= job:
        return dict(EMPTY), set()
    bad = {(int(row["id"], 16), row["height"], row["width"]) for row in document["bad"]}
    return read_index(out, document), set() if retry_bad else bad


def _missing(
    every: Units,
    ids: NDArray[np.uint64],
    frames: NDArray[np.int64],
    table: Table,
    bad: set[tuple[int, int, int]],
) -> Units:
    """Units with those of their chunks that are not there."""
    streams = np.zeros(len(every), np.uint64)
    for bit, length, places in every.each_stream():
        rows = every.rows[places]
        own = keys_of(ids[rows], every.height[places], every.width[places], length)
        found = table.find(own)
        there = found >= 0
        if len(table):
            there &= table.columns["frames"][found] == frames[rows]
        lack = places[~there & (frames[rows] >= length)]
        streams[lack] |= np.uint64(1 << bit)
    if bad:
        for place in np.flatnonzero(streams).tolist():
            size = (int(every.height[place]), int(every.width[place]))
            if (int(ids[every.rows[place]]), *size) in bad:
                streams[place] = 0
    return replace(every, streams=streams).only(streams > 0)
