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
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIPS, FRAMES = 8, 60
CHILD = "--child"
CONFIG = """
bucket_config = {{"64px": {{17: (1.0, 2)}}}}
dataset = dict(data_path={data!r})
num_workers = 1
model = dict(
    type="STDiT3", hidden_size=288, depth=28, num_heads=4, input_sq_size=64, freeze_y_embedder=True
)
grad_checkpoint = True
vae = dict(type="OpenSoraVAE_V1_2", from_pretrained={vae!r})
text_encoder = dict(type="tiny_t5", model_max_length=300, d_model=1024, num_layers=2)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
dtype = "fp32"
engine = "native"
max_steps = {steps}
"""


def make(folder: Path, steps: int) -> Path:
    """Clips, weights and config."""
    import torch

    from tests.trainer.data.clips import write_clip
    from trainer.models.spatial_vae import SpatialSettings
    from trainer.models.temporal_vae import TemporalSettings
    from trainer.models.video_vae import OpenSoraVAE, VideoVAESettings, save_vae

    chance = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = [("path", "text", "num_frames", "height", "width", "fps")]
    for number in range(CLIPS):
        picture = chance.integers(16, 235, (360 // 8, 640 // 8 + FRAMES), np.uint8)
        large = np.kron(picture, np.ones((8, 8), np.uint8))

        def moving(index: int, large: np.ndarray = large) -> np.ndarray:
            return large[:, 8 * index : 8 * index + 640]

        write_clip(folder / f"{number}.mp4", FRAMES, 360, 640, picture=moving)
        rows.append((f"{number}.mp4", f"a noise that moves left, number {number}", FRAMES, 360, 640, 24))  # fmt: skip
    with (folder / "clips.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    torch.manual_seed(0)
    settings = VideoVAESettings(
        spatial=SpatialSettings(block_out_channels=(32, 64, 128, 128)),
        temporal=TemporalSettings(filters=32),
    )
    save_vae(OpenSoraVAE(settings), folder / "vae")
    config = folder / "config.py"
    config.write_text(
        CONFIG.format(data=str(folder / "clips.csv"), vae=str(folder / "vae"), steps=steps)
    )
    return config


def child(words: list[str]) -> int:
    """A training run that prints the processor seconds of each step and of the encoding in it."""
    from trainer import loop, train

    taken: dict[str, list[float]] = {"step": [], "encode": [], "decode": []}

    def timed(name: str) -> None:
        plain = getattr(loop, f"_{name}")

        def run(*arguments: Any) -> Any:
            start = time.process_time()
            result = plain(*arguments)
            taken[name].append(time.process_time() - start)
            if name == "encode":
                taken["decode"].append(arguments[1]["decode_s"])
            return result

        setattr(loop, f"_{name}", run)

    timed("step")
    timed("encode")
    code = train.main(words)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"memory_mb": memory, **taken}))
    return code


def run(words: list[str]) -> str:
    """What a command prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, one thread a process")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = make(folder, options.steps)
        cache = folder / "cache"
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        run(["trainer.data", "encode", str(config), str(cache), "-q"])
        cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        size = sum(path.stat().st_size for path in cache.glob("*.safetensors"))
        frames = CLIPS * (FRAMES // 17 * 17)
        print(
            f"encode: {CLIPS} clips, {frames} frames: {cpu_s:.1f} s with starting, {size / 1e6:.2f} MB"
        )
        least: dict[str, dict[str, float]] = {}
        for label, words in (
            ("on the fly", []),
            ("from cache", ["--dataset.features", str(cache)]),
        ):
            run_dir = str(folder / label.replace(" ", "-"))
            printed = run(
                ["tests.bench.features", CHILD, str(config), "--run-dir", run_dir, *words]
            )
            found = json.loads(printed.splitlines()[-1])
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
    sys.exit(child(sys.argv[2:]) if sys.argv[1:2] == [CHILD] else main())
