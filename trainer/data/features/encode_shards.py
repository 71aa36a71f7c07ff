"""Shards of a job, one after another: decoding continues across their borders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from trainer.config.load import Config
from trainer.data.features import encode_work
from trainer.data.features.cache import NETWORK_DTYPES
from trainer.data.features.clip_files import FACTS
from trainer.data.features.encode_plan import Options, Work
from trainer.data.features.encode_work import Decoded, LatentMaker, Segment, ShardBuilder
from trainer.data.features.files import LATENTS, TEXTS, FeaturesError
from trainer.data.features.index import text_key
from trainer.data.features.units import keys_of, segments
from trainer.data.manifest.left_out import RESUME
from trainer.data.video.decode import Window
from trainer.data.video.other_size import OtherSizes, other_size
from trainer.device import choose_device
from trainer.engine.base import set_threads
from trainer.engine.process_group import Rank
from trainer.runlog.progress import RowProgress
from trainer.weights.tensorfile import DTYPES

Shard = tuple[Path, str, int]
_AT_A_SIZE = " (a row is a clip at one size)"


@dataclass
class _Clip:
    """A clip at one size, as far as it is encoded."""

    unit: int
    fps: float = 0.0
    file: Sequence[int] = ()  # see file_identity.py
    parts: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    error: str = ""


class Maker:
    """Makes shards; VAE and text encoder are built when the first shard needs them."""

    def __init__(
        self, config: Config, work: Work, document: Mapping[str, Any], options: Options, out: Path
    ) -> None:
        self._config, self._work, self._document = config, work, document
        self._options, self._out = options, out
        self._device = choose_device(Rank.from_environment().local_rank)
        self._bad = 0
        self._progress = RowProgress(f"encode {out.name}", options.quiet)
        rank = Rank.from_environment().rank
        self._other_sizes = OtherSizes(rank, "encoded", self._progress.clear)

    def make(self, shards: Sequence[Shard]) -> None:
        """Write each. Raises FeaturesError above the limit of bad clips; what is done stays."""
        here = Rank.from_environment().on_host
        set_threads(self._config.threads, here, self._device.type == "cuda")
        latents = [shard for shard in shards if shard[1] == LATENTS]
        texts = [shard for shard in shards if shard[1] == TEXTS]
        try:
            # One after the other, so that a T5-XXL finds the memory that the VAE had.
            if latents:
                self._latents(latents)
            if texts:
                self._texts(texts)
        except OSError as error:  # a full disk, a folder that may not be written
            raise FeaturesError(
                f"{error.filename or self._out}: {error.strerror or error}",
                hint=f"finished work is kept; {RESUME}",
            ) from None
        finally:
            self._progress.clear()

    def _latents(self, shards: Sequence[Shard]) -> None:
        from trainer.components import build_vae

        vae = build_vae(self._config.vae, NETWORK_DTYPES[self._config.dtype])
        vae.to(self._device)
        own = self._document["key"]["latents"]
        maker = LatentMaker(vae, self._work.grid, own["kind"], DTYPES[own["dtype"]], self._device)
        sizes = self._work.sizes  # what a clip takes of the time goes with its bytes
        spans = [slice(*self._work.latent_shards[number]) for _, _, number in shards]
        total = sum(int(sizes[span].sum()) for span in spans)
        done = clips = 0
        options = self._options.workers, self._config.dataset.clip_timeout_s
        with closing(encode_work.decode_ahead(self._segments(shards), *options)) as segments:
            for place, of_shard in groupby(segments, key=lambda one: one[0].shard):
                held = []
                for unit, of_clip in groupby(of_shard, key=lambda one: one[0].unit):
                    self._progress.at(done / total, clips, _AT_A_SIZE)
                    held.append(self._encoded(maker, unit, of_clip))
                    done, clips = done + int(sizes[unit]), clips + 1
                self._write_latents(shards[place], held)

    def _encoded(self, maker: LatentMaker, unit: int, segments: Iterable[Decoded]) -> _Clip:
        clip, manifest = _Clip(unit), self._work.manifest
        row = int(self._work.units.rows[unit])
        stated = int(manifest.height[row]), int(manifest.width[row])
        for segment, pixels, reply in segments:
            if reply.error:
                return _Clip(unit, error=reply.error)
            if clip.file not in ((), reply.file):
                return _Clip(unit, error="it was changed while it was read")
            clip.fps, clip.file = reply.fps, reply.file
            if why := other_size(stated, reply.size):
                self._other_sizes.tell(segment.path, why)
            for length in segment.lengths:
                if maker.grid.count(length, pixels.shape[1]) == 0:
                    continue
                made = maker.chunks(pixels, segment.first, length, self._key(unit, length))
                if not bool(torch.isfinite(made.float()).all()):
                    return _Clip(unit, error="its latents are not finite")
                clip.parts.setdefault(length, []).append(made)
        return clip

    def _key(self, unit: int, length: int) -> int:
        work, units = self._work, self._work.units
        ids = work.ids[units.rows[unit : unit + 1]]
        return int(keys_of(ids, units.height[unit], units.width[unit], length)[0])

    def _segments(self, shards: Sequence[Shard]) -> Iterator[Segment]:
        work, units, manifest = self._work, self._work.units, self._work.manifest
        interval, resize = self._config.dataset.frame_interval, self._config.dataset.resize
        for place, (_, _, number) in enumerate(shards):
            for unit in range(*work.latent_shards[number]):
                row = int(units.rows[unit])
                size = int(units.height[unit]), int(units.width[unit])
                each = 3 * size[0] * size[1] * (4 if resize == "torch" else 1)
                span, stated = int(work.frames[row]), int(manifest.num_frames[row])
                cuts = segments(
                    work.grid, units.wanted(unit), span, each, encode_work.SEGMENT_BYTES
                )
                for lengths, first, stop in cuts:
                    times = first * interval, stop - first, interval
                    window = Window(*times, *size, stated, resize, is_fixed=True)
                    yield Segment(place, unit, manifest.locate(row), lengths, first, window)

    def _write_latents(self, shard: Shard, clips: Sequence[_Clip]) -> None:
        work, units = self._work, self._work.units
        builder, bad = ShardBuilder(LATENTS), []
        for clip in clips:
            row = int(units.rows[clip.unit])
            name = f"{int(work.ids[row]):016x}"
            size = {"height": int(units.height[clip.unit]), "width": int(units.width[clip.unit])}
            if clip.error:
                path = work.manifest.paths[row]
                bad.append({"id": name, **size, "path": path, "reason": clip.error})
                continue
            for length, parts in clip.parts.items():
                values = torch.cat(parts)
                chunks = {"key": self._key(clip.unit, length), "length": length}
                times: dict[str, Any] = {
                    "frames": int(work.frames[row]),
                    "count": len(values),
                    "fps": clip.fps,
                }
                times |= zip(FACTS, clip.file, strict=True)
                entry = f"{name}.{size['height']}x{size['width']}.{length}"
                builder.add(entry, values, len(values), **size, **chunks, **times)
        self._bad += len(bad)
        builder.write(shard[0], bad=bad)
        if self._bad > self._options.max_bad:
            shown = "".join(f"\n  {row['path']}: {row['reason']}" for row in bad[-10:])
            raise FeaturesError(
                f"{self._bad:,} times a clip could not be read, "
                f"{self._options.max_bad:,} are allowed{shown}",
                hint=f"--max-bad allows more; {RESUME}",
            )

    def _texts(self, shards: Sequence[Shard]) -> None:
        from trainer.components import build_text_encoder

        dtype = NETWORK_DTYPES[self._config.dtype]
        encoder: Any = build_text_encoder(self._config, self._out, dtype).to(self._device)
        if self._document["key"]["captions"]["embedder"] is not None:
            from trainer.data.features.projected_captions import ProjectingEncoder, load_embedder

            embedder = load_embedder(self._config, encoder.channels, dtype)
            encoder = ProjectingEncoder(encoder, embedder.to(self._device))
        manifest, rows = self._work.manifest, self._work.text_rows
        spans = [self._work.text_shards[number] for _, _, number in shards]
        total, done = sum(stop - start for start, stop in spans), 0
        for (path, _, _), span in zip(shards, spans, strict=True):
            captions = [manifest.texts[row] for row in rows[slice(*span)].tolist()]
            made: dict[int, torch.Tensor] = {}
            for place, values in encode_work.text_features(encoder, captions):
                made[place] = values
                done += 1
                self._progress.at(done / total, done, ", captions")
            builder = ShardBuilder(TEXTS)
            for place, caption in enumerate(captions):
                key = text_key(caption)
                builder.add(f"{key:016x}", made[place], 1, key=key, count=len(made[place]))
            builder.write(path)
