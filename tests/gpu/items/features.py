"""A feature cache of random numbers, made by the trainer's own writer: no clip, VAE or T5 is there.

The job, the shards, their tables and the index are those of `trainer.data encode`; only what would
be decoded and encoded is drawn at random. Weights of VAE and T5 are small files that have a hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from trainer.config.load import Config
from trainer.data.features import encode_job, encode_work
from trainer.data.features.encode_plan import Options
from trainer.data.features.encode_shards import Maker, Shard, _Clip
from trainer.data.features.files import STORED, TEXTS
from trainer.data.features.index import POSTERIOR, text_key
from trainer.data.manifest.read import read_manifest
from trainer.weights.tensorfile import DTYPES

FPS = 24.0
NO_FILE = (0, 0, 0)  # no bytes, no time, no hash: which clip it is of is not kept


def make_features(config: Config, out: Path) -> int:
    """A finished cache for all clips of the config's manifest; returns how many there are."""
    manifest = read_manifest(Path(str(config.dataset.data_path)))
    options = Options(kind=POSTERIOR, dtype=STORED["fp16"], workers=0)
    document = encode_job.prepare(config, manifest, out, options)
    assert document is not None  # the cache is new
    work = encode_job.work_of(config, manifest, out, document)
    shards = [(out / name, kind, number) for name, kind, number in encode_job.shard_names(document)]
    RandomMaker(config, work, document, options, out).make(shards)
    assert encode_job.finish(out, document)
    return len(manifest)


class RandomMaker(Maker):
    """Shards of random latents and captions, in the shapes that the job has."""

    def _latents(self, shards: Sequence[Shard]) -> None:
        generator = torch.Generator().manual_seed(0)
        for shard in shards:
            units = range(*self._work.latent_shards[shard[2]])
            self._write_latents(shard, [self._random_clip(unit, generator) for unit in units])

    def _random_clip(self, unit: int, generator: torch.Generator) -> _Clip:
        grid, units = self._work.grid, self._work.units
        dtype = DTYPES[self._document["key"]["latents"]["dtype"]]
        size = int(units.height[unit]) // grid.edge, int(units.width[unit]) // grid.edge
        clip = _Clip(unit, FPS, NO_FILE)
        for length in units.wanted(unit):
            count = grid.count(length, int(self._work.frames[units.rows[unit]]))
            if count:
                shape = (count, 2, grid.latents(length), grid.channels, *size)
                values = torch.randn(shape, generator=generator)
                values[:, 1] = -6.0  # the logarithm of a small variance
                clip.parts[length] = [values.to(dtype)]
        return clip

    def _texts(self, shards: Sequence[Shard]) -> None:
        generator = torch.Generator().manual_seed(1)
        document, work = self._document, self._work
        dtype, channels = DTYPES[document["text_dtype"]], document["text_channels"]
        most = document["key"]["text"]["model_max_length"]
        for path, _, number in shards:
            builder = encode_work.ShardBuilder(TEXTS)
            for row in work.text_rows[slice(*work.text_shards[number])].tolist():
                text = work.manifest.texts[row]
                tokens = min(most, 20 + 7 * (row % 20))
                values = torch.randn(tokens, channels, generator=generator).to(dtype)
                key = text_key(text)
                builder.add(f"{key:016x}", values, 1, key=key, count=tokens)
            builder.write(path)


def write_placeholders(folder: Path, text_channels: int) -> dict[str, str]:
    """Folders that stand for a VAE of the published sizes and a T5; options that name them."""
    for name, settings in (("vae", "{}"), ("t5", f'{{"d_model": {text_channels}}}')):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(settings)
        save_file({"none": torch.zeros(1)}, place / "model.safetensors")
    return {
        "--vae.from-pretrained": str(folder / "vae"),
        "--text-encoder.from-pretrained": str(folder / "t5"),
    }
