"""What a job of encoding makes: clips and captions that the cache lacks, cut into shards.

A pure function of manifest, buckets, the cache's key and what the cache holds: every rank computes
the same, whenever it is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.load import Config
from trainer.data.features import clip_files, index
from trainer.data.features.files import LATENTS, NUMBERS, STORED, TEXTS, FeaturesError
from trainer.data.features.key import encoder_width
from trainer.data.features.units import Grid, Units, cut, find_units, frames_of, unit_bytes
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import content_ids
from trainer.models.stdit_config import PRESETS, STDiT3Config
from trainer.runlog import units
from trainer.runlog.units import counted

_HEAD_BYTES = 400  # of tables and header, for each entry


@dataclass(frozen=True)
class Options:
    """Options of the command line, beside the config."""

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

    @property
    def latents(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype, "max_frames": self.max_frames}


@dataclass(frozen=True)
class Work:
    """All that a job makes. Shards are (first, behind the last) of units and of text_rows."""

    manifest: Manifest
    grid: Grid
    units: Units  # that the cache does not have
    frames: NDArray[np.int64]  # by row
    ids: NDArray[np.uint64]  # by row
    sizes: NDArray[np.int64]  # bytes of each unit
    latent_shards: list[tuple[int, int]]
    text_rows: NDArray[np.int64]  # first row of each caption that the cache does not have
    text_bytes: int  # at most
    text_shards: list[tuple[int, int]]

    @property
    def bytes(self) -> int:
        entries = len(self.units) + len(self.text_rows)
        return int(self.sizes.sum()) + self.text_bytes + _HEAD_BYTES * entries


def work_of(config: Config, manifest: Manifest, out: Path, document: Mapping[str, Any]) -> Work:
    inputs, key = document["inputs"], document["key"]
    latents, interval = key["latents"], key["frames"]["frame_interval"]
    grid, most = Grid.of(document["grid"]), latents["max_frames"]
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    longest = max(cell.frames for cell in buckets.cells)
    if most is not None and most < longest:
        raise FeaturesError(f"--max-frames {most} is below a bucket's {longest} frames")
    every = find_units(manifest, buckets, interval, grid)
    tables, bad = index.empty_tables(), set()
    if (before := index.read_document(out)) is not None and before["job"] < document["job"]:
        tables = index.read_index(out, before)
        bad = set() if inputs["retry_bad"] else set(index.bad_clips(before))
    frames, ids = frames_of(manifest.num_frames, interval, most), content_ids(manifest)
    changed = np.array(inputs.get("changed", ()), np.uint64)
    units = _missing(every, ids, frames, tables[LATENTS], bad, changed)
    copies = 2 if latents["kind"] == index.POSTERIOR else 1
    sizes = unit_bytes(units, frames, grid, copies * np.dtype(NUMBERS[latents["dtype"]]).itemsize)
    first: dict[int, int] = {}
    for row in np.unique(every.rows).tolist():
        first.setdefault(index.text_key(manifest.texts[row]), row)
    is_missing = tables[TEXTS].find(np.array(list(first), np.uint64)) < 0
    rows = np.array(list(first.values()), np.int64)[is_missing]
    # About; how many tokens a caption has only the encoder knows.
    tokens = [len(manifest.texts[row]) // 3 + 2 for row in rows.tolist()]
    tokens_most = np.minimum(np.array(tokens, np.int64), key["text"]["model_max_length"])
    token_bytes = document["text_channels"] * np.dtype(NUMBERS[document["text_dtype"]]).itemsize
    text_sizes = tokens_most * token_bytes
    latent_shards, text_shards = (cut(s, inputs["shard_bytes"]) for s in (sizes, text_sizes))
    of_texts = (rows, int(text_sizes.sum()), text_shards)
    return Work(manifest, grid, units, frames, ids, sizes, latent_shards, *of_texts)


def foresee(config: Config, manifest: Manifest, out: Path, options: Options) -> str:
    """What `encode` would make, in words; nothing is written."""
    before = index.read_document(out) if not options.force else None
    document = {
        "job": before["job"] + 1 if before else 1,
        "key": {
            "frames": {"frame_interval": config.dataset.frame_interval},
            "latents": options.latents,
            "text": {"model_max_length": config.text_encoder.model_max_length},
        },
        **shapes_of(config, options),
        "inputs": inputs_of(config, manifest, options),
    }
    if before:
        document["inputs"]["changed"], _ = look_at_clips(config, manifest, out, before, options)
    todo = work_of(config, manifest, out if before else Path("/nonexistent"), document)
    sizes: dict[str, list[int]] = {}
    for height, width, size in zip(todo.units.height, todo.units.width, todo.sizes, strict=True):
        sizes.setdefault(f"{height}x{width}", []).append(int(size))
    lines = [
        f"{name}: {counted(len(b), 'clip')}, {units.size(sum(b))}" for name, b in sizes.items()
    ]
    lines.append(f"captions: {len(todo.text_rows):,}, up to {units.size(todo.text_bytes)}")
    count = len(todo.latent_shards) + len(todo.text_shards)
    shards = counted(count, "shard")
    lines.append(f"in all up to {units.size(todo.bytes)} in {shards}")
    return "\n".join(lines)


def look_at_clips(
    config: Config, manifest: Manifest, out: Path, before: Mapping[str, Any], options: Options
) -> tuple[list[int], list[str]]:
    """Content ids of clips whose files are not those that the cache's latents were made of, and
    notes for people."""
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    interval, ids = config.dataset.frame_interval, content_ids(manifest)
    units = find_units(manifest, buckets, interval, Grid.of(before["grid"]))
    table = index.read_index(out, before)[LATENTS]
    limits = options.workers, config.dataset.clip_timeout_s
    compared = clip_files.compare(manifest, units, ids, table, *limits)
    notes = compared.notes(out)
    for row, how in list(compared.changed.items())[:1]:
        notes.append(
            f"{len(compared.changed):,} clips are other files now and are encoded again, first "
            f"{manifest.locate(row)} ({how})"
        )
    return clip_files.changed_ids(ids, compared).tolist(), notes


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


def shapes_of(config: Config, options: Options) -> dict[str, Any]:
    """The grid (see units.Grid), from the VAE's settings without building it, and of captions the
    width that the encoder gives, the width and the dtype that are stored."""
    vae, text = config.vae, config.text_encoder
    grid: dict[str, Any] = {"chunk": 1, "time": 1, "edge": 1, "channels": vae.channels}
    if vae.type != "identity":
        from trainer.models.vae.video import VideoVAESettings
        from trainer.weights.source import find_source

        settings = VideoVAESettings.from_dict(find_source(str(vae.from_pretrained)).config)
        grid = {
            "chunk": vae.micro_frame_size or settings.micro_frame_size,
            "time": settings.temporal.factor,
            "edge": settings.spatial.factor,
            "channels": settings.temporal.embed_dim,
        }
    is_tiny = text.type == "tiny_t5"
    channels = stored = text.d_model if is_tiny else encoder_width(text.from_pretrained)
    if options.caption_embedder:
        model = {**PRESETS[config.model.type], **config.model.options}
        stored = STDiT3Config(**model).hidden_size
    return {
        "grid": grid,
        "encoder_channels": channels,
        "text_channels": stored,
        "text_dtype": STORED[config.dtype],
    }


def _missing(
    every: Units,
    ids: NDArray[np.uint64],
    frames: NDArray[np.int64],
    table: index.Table,
    bad: set[tuple[int, int, int]],
    changed: NDArray[np.uint64],
) -> Units:
    """Units with those of their chunks that are not there, or are of other files."""
    is_changed = np.isin(ids[every.rows], changed)
    streams = np.where(is_changed, every.streams, np.uint64(0))
    for bit, places, _ in index.lacking(every, ids, frames, table):
        streams[places] |= np.uint64(1 << bit)
    for place in np.flatnonzero(streams).tolist() if bad else ():
        size = (int(every.height[place]), int(every.width[place]))
        if (int(ids[every.rows[place]]), *size) in bad:
            streams[place] = 0
    keep = streams > 0
    sizes = every.height[keep], every.width[keep]
    return Units(every.rows[keep], *sizes, streams[keep], every.lengths)
