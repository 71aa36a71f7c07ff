"""A small data set of real clips, a VAE of 1.2's shape, and feature caches made of them, for tests."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.trainer.data.clips import write_clip
from tests.trainer.models.tiny_vae import save_vae, tiny_vae
from trainer.config import load as configuration
from trainer.config.load import Config
from trainer.data.__main__ import main
from trainer.data.features.cache import Features
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan

COLUMNS = ("path", "text", "num_frames", "height", "width", "fps")
# 20 is no multiple of the VAE's 17 frames: one whole chunk and one of 3
BUCKETS = (
    '{"16px": {17: (1.0, 2), 34: ((1.0, 0.5), 2), 20: ((0.8, 0.5), 2)}, "24px": {17: (0.5, 2)}}'
)
FRAMES = (70, 60, 41, 36, 25, 19)

CONFIG = """
bucket_config = {buckets}
dataset = dict(data_path={data!r})
num_workers = 1
model = dict(type="STDiT3", hidden_size=32, depth=1, num_heads=2, input_sq_size=16)
vae = {vae}
text_encoder = dict(type="tiny_t5", model_max_length=8, d_model=16, num_layers=1)
dtype = "fp32"
max_steps = 4
log_every = 1
"""


@dataclass(frozen=True)
class Place:
    """Where clips, config and caches lie."""

    folder: Path
    config_file: Path

    @property
    def table(self) -> Path:
        return self.folder / "clips.csv"

    def config(self, *words: str) -> Config:
        return configuration.load(self.config_file, list(words))

    def encode(self, out: Path, *words: str) -> int:
        """The verb, in this process."""
        return main(["encode", str(self.config_file), str(out), "-q", *words])

    def plan(self, seed: int = 3) -> DataPlan:
        config = self.config()
        return DataPlan(self.manifest(), Buckets.parse(config.bucket_config), seed)

    def manifest(self) -> Manifest:
        return read_manifest(self.config().dataset.data_path or "")


def make_place(folder: Path, *, identity: bool = False) -> Place:
    """Clips whose frames differ from each other, a manifest, a config; with VAE weights or pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, frames in enumerate(FRAMES):
        write_clip(folder / f"{number}.mp4", frames, 32, 40)
        rows.append((f"{number}.mp4", f"clip number {number % 4}", frames, 32, 40, 24))
    write_table(folder / "clips.csv", rows)
    vae = 'dict(type="identity", channels=1)'
    if not identity:
        save_vae(tiny_vae(), folder / "vae")
        vae = f'dict(type="OpenSoraVAE_V1_2", from_pretrained={str(folder / "vae")!r})'
    config = folder / "config.py"
    config.write_text(
        CONFIG.format(buckets=BUCKETS, data=str(folder / "clips.csv"), vae=vae), encoding="utf-8"
    )
    return Place(folder, config)


def write_table(path: Path, rows: list[tuple]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """Of every file of features and of the index."""
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def differ(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.float() - two.float()).abs().max())


def open_cache(folder: Path) -> Features:
    features = Features(folder)
    features.check_files()
    return features
