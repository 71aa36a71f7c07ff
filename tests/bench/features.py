"""A training step from a feature cache against the same step with VAE and text encoder, in one run.

python -m tests.bench.features [--steps 4]

The networks are Open-Sora 1.2's (VAE, STDiT3-XL/2 with every block recomputed) at a quarter of their
width: their shares of a step are those of the real ones (VAE 36 %), at a sixteenth of the work. The
text encoder is a tiny T5, so what a T5-XXL would take on top (0.4 to 2.5 %) is not in the ratio. Both
runs are the real training program over the same clips (h264, 360p) in the same order. Seconds are
processor time of the rank (a loaded machine stretches wall time only), less the first step.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import forked, tiny

CONFIG = """
bucket_config = {{{bucket!r}: {{17: (1.0, 2)}}}}
dataset = dict(data_path={data!r})
num_workers = 1
model = dict(
    type="STDiT3", hidden_size=288, depth={depth}, num_heads=4, input_sq_size=64, freeze_y_embedder=True
)
grad_checkpoint = True
vae = dict(type="OpenSoraVAE_V1_2", from_pretrained={vae!r})
text_encoder = dict(type="tiny_t5", model_max_length=300, d_model={captions}, num_layers=2)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
dtype = "fp32"
engine = "native"
max_steps = {steps}
"""


def prepare(folder: Path, options: argparse.Namespace) -> float:
    """Clips, weights, config and cache; returns the processor seconds of filling the cache."""
    make(folder, options)
    return encode(folder / "config.py", folder / "cache")


def make(folder: Path, options: argparse.Namespace) -> None:
    """Clips, weights and config."""
    import torch

    from tests.trainer.data.clips import write_clip
    from tests.trainer.models.tiny_vae import save_vae
    from trainer.models.vae.spatial import SpatialSettings
    from trainer.models.vae.temporal import TemporalSettings
    from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

    chance = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = [("path", "text", "num_frames", "height", "width", "fps")]
    frames = options.frames
    for number in range(options.clips):
        picture = chance.integers(16, 235, (360 // 8, 640 // 8 + frames), np.uint8)
        large = np.kron(picture, np.ones((8, 8), np.uint8))

        def moving(index: int, large: np.ndarray = large) -> np.ndarray:
            return large[:, 8 * index : 8 * index + 640]

        write_clip(folder / f"{number}.mp4", frames, 360, 640, picture=moving)
        rows.append((f"{number}.mp4", f"a noise that moves left, number {number}", frames, 360, 640, 24))  # fmt: skip
    with (folder / "clips.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    torch.manual_seed(0)
    settings = VideoVAESettings(
        spatial=SpatialSettings(block_out_channels=tuple(options.channels)),
        temporal=TemporalSettings(filters=options.channels[0]),
    )
    save_vae(OpenSoraVAE(settings), folder / "vae")
    (folder / "config.py").write_text(
        CONFIG.format(
            data=str(folder / "clips.csv"),
            vae=str(folder / "vae"),
            bucket=options.bucket,
            depth=options.depth,
            captions=options.captions,
            steps=options.steps,
        )
    )


def encode(config: Path, cache: Path) -> float:
    """Processor seconds, those of the decoding processes among them."""
    from trainer.data.__main__ import main

    begun_s = _spent_s()
    if main(["encode", str(config), str(cache), "-q"]):
        raise RuntimeError("not every clip was encoded")
    return _spent_s() - begun_s


def _spent_s() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, both))


def train(words: list[str]) -> dict[str, Any]:
    """A training run: processor seconds of each step and of the encoding in it, and its memory."""
    from trainer import loop, step
    from trainer.train import main

    taken: dict[str, list[float]] = {"step": [], "encode": [], "decode": []}

    def timed(module: Any, attribute: str) -> None:
        plain, name = getattr(module, attribute), attribute.removeprefix("_")

        def run(*arguments: Any) -> Any:
            start = time.process_time()
            result = plain(*arguments)
            taken[name].append(time.process_time() - start)
            if name == "encode":
                taken["decode"].append(arguments[-1].decode_s)
            return result

        setattr(module, attribute, run)

    timed(loop, "step")
    timed(step, "encode")
    if main(words):
        raise RuntimeError("the run failed")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"memory_mb": memory, **taken}


def alone(work: Callable[..., object], *arguments: object) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return forked.results(work, arguments, [environment])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--frames", type=int, default=60, help="of a clip")
    parser.add_argument("--depth", type=int, default=28, help="blocks of the transformer")
    parser.add_argument(
        "--channels", type=int, nargs=4, default=[32, 64, 128, 128], help="of the VAE"
    )
    parser.add_argument("--captions", type=int, default=1024, help="width of their features")
    parser.add_argument("--bucket", default="64px")
    options = tiny.parse(
        parser, steps=2, clips=2, frames=18, depth=1, channels=[32] * 4, captions=64, bucket="16px"
    )
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, one thread a process")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_s = alone(prepare, folder, options)
        cache = folder / "cache"
        size = sum(path.stat().st_size for path in cache.glob("*.safetensors"))
        frames = options.clips * (options.frames // 17 * 17)
        print(f"encode: {options.clips} clips, {frames} frames: {cpu_s:.1f} s, {size / 1e6:.2f} MB")
        least: dict[str, dict[str, float]] = {}
        for label, words in (
            ("on the fly", []),
            ("from cache", ["--dataset.features", str(cache)]),
        ):
            run_dir = str(folder / label.replace(" ", "-"))
            found = alone(train, [str(folder / "config.py"), "--run-dir", run_dir, *words])
            # The least of each: other work on the machine only adds.
            own = {n: min(found[n][1:]) for n in ("step", "encode", "decode")}
            own["rest"] = own["step"] - own["encode"]
            least[label] = own
            shown = ", ".join(f"{name} {value:.3f} s" for name, value in own.items())
            print(f"{label}: {shown}; peak memory {found['memory_mb']:,.0f} MB")
        fly, cached = least["on the fly"], least["from cache"]
        rest = min(fly["rest"], cached["rest"])  # the same work, bit by bit: it differs by noise
        ratio = (rest + fly["encode"]) / (rest + cached["encode"])
        share = fly["encode"] / (rest + fly["encode"])
        print(f"encoding is {share:.0%} of a step; from the cache a step takes {ratio:.2f}x less")
        work = [own["encode"] + own["decode"] for own in (fly, cached)]
        print(f"decoding and encoding together: {work[0] / work[1]:,.0f}x less")
    return 0


if __name__ == "__main__":
    sys.exit(main())
