"""Videos from prompts and a checkpoint.

    python -m trainer.infer demo --ckpt-path outputs/002-STDiT3/epoch3-global_step600 \\
        --prompt-path prompts.txt --save-dir samples

CONFIG is a config file or the short name of one, which `--a.b-c VALUE` overrides, or a run's
config.json. Writes sample_0000.mp4, ... in the order of the prompts and contact_sheet.png. A config
whose text encoder was made for the run (tiny_t5) needs the checkpoint inside its run directory.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainer import checkpoint as checkpoints
from trainer import config as configuration
from trainer.checkpoint import find
from trainer.config import Config
from trainer.errors import ConfigError, TrainerError
from trainer.flow import draw_noise
from trainer.mp4 import write_mp4
from trainer.parts import Parts, build_parts
from trainer.pictures import contact_sheet
from trainer.weights import load_weights, read_checkpoint

SHEET = "contact_sheet.png"
# Flags that are fields of the config's `sample` section.
_SAMPLE_FLAGS = (
    "num_frames",
    "image_size",
    "fps",
    "num_sampling_steps",
    "cfg_scale",
    "seed",
    "batch_size",
)
Say = Callable[[str], None]  # one line for the person


@dataclass(frozen=True, slots=True)
class Request:
    """What to make, complete: no value is left to a default later."""

    prompts: tuple[str, ...]
    num_frames: int
    height: int  # pixels
    width: int
    fps: float  # told to the model
    save_fps: float  # written into the file
    steps: int
    cfg_scale: float
    seed: int
    batch_size: int


def read_prompts(path: Path, say: Say) -> tuple[str, ...]:
    """One prompt a line; blank lines are left out and said so.

    Raises ConfigError when the file cannot be read or holds no prompt.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {error}") from None
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise ConfigError(f"the prompt file {path} holds no prompt")
    if len(prompts) < len(lines):
        say(f"{len(lines) - len(prompts)} blank lines of {path} left out")
    return prompts


def request_of(config: Config, prompts: Sequence[str]) -> Request:
    """The config's `sample` section filled from its other sections.

    Raises ConfigError when the size of the videos is said nowhere.
    """
    sample, flow = config.sample, config.scheduler
    if sample.num_frames is None or sample.image_size is None:
        raise ConfigError(
            "how large the videos shall be is not set", hint="--num-frames 51 --image-size 144 256"
        )
    return Request(
        prompts=tuple(prompts),
        num_frames=sample.num_frames,
        height=sample.image_size[0],
        width=sample.image_size[1],
        fps=sample.fps,
        save_fps=sample.save_fps or sample.fps,
        steps=sample.num_sampling_steps or flow.num_sampling_steps,
        cfg_scale=flow.cfg_scale if sample.cfg_scale is None else sample.cfg_scale,
        seed=sample.seed,
        batch_size=sample.batch_size,
    )


def generator_of(seed: int, index: int) -> torch.Generator:
    """The random numbers of one video: a function of the run's seed and the prompt's place only.

    So a video does not change with the batch size or with the prompts around it, and the same prompt
    twice gives two videos.
    """
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@torch.inference_mode()
def make_videos(
    parts: Parts,
    request: Request,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """RGB frames [T, H, W, 3] of each prompt, in order; `progress(done, total)` counts denoising steps."""
    model = parts.model.eval()
    size = parts.vae.latent_size((request.num_frames, request.height, request.width))
    batches = -(-len(request.prompts) // request.batch_size)
    for number in range(batches):
        start = number * request.batch_size
        prompts = request.prompts[start : start + request.batch_size]
        generators = [generator_of(request.seed, start + i) for i in range(len(prompts))]
        z = draw_noise((len(prompts), parts.vae.out_channels, *size), generators).to(device)
        y, mask = parts.text.encode(prompts)

        def value(number: float, count: int = len(prompts)) -> torch.Tensor:
            return torch.full((count,), float(number), device=device)

        def step(done: int, _z: torch.Tensor, before: int = number * request.steps) -> None:
            if progress is not None:
                progress(before + done, batches * request.steps)

        z = parts.flow.sample(
            model,
            z,
            y.to(device, torch.float32),
            model.y_embedder.y_embedding.float(),
            mask.to(device),
            {
                "fps": value(request.fps),
                "height": value(request.height),
                "width": value(request.width),
                "num_frames": value(request.num_frames),
            },
            request.steps,
            request.cfg_scale,
            progress=step,
        )
        video = parts.vae.decode(z, request.num_frames).float().clamp(-1, 1)
        yield from ((video + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).cpu().numpy()


def infer(
    config: Config,
    checkpoint: Path,
    prompts: Sequence[str],
    save_dir: Path,
    *,
    ema: bool = True,
    upscale: int = 1,
    say: Say = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Sample every prompt into `save_dir`; returns the videos' paths.

    `checkpoint` is one, a run directory (its newest is taken), or a file of weights.

    Raises ConfigError and CheckpointError before anything is written.
    """
    request = request_of(config, prompts)
    if checkpoint.is_dir():
        checkpoint = find(checkpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if config.dtype == "bf16" and device.type == "cuda" else torch.float32
    parts = build_parts(config, checkpoint.parent, dtype)
    weights, averaged = read_checkpoint(checkpoint, ema=ema)
    if ema and not averaged:
        say(f"{checkpoint} has no EMA; using the weights themselves")
    load_weights(parts.model, weights, checkpoint)
    parts.model.to(device, dtype)
    parts.text.to(device)
    save_dir.mkdir(parents=True, exist_ok=True)
    paths, clips = [], []
    for index, frames in enumerate(make_videos(parts, request, device, progress)):
        path = save_dir / f"sample_{index:04d}.mp4"
        write_mp4(path, frames, request.save_fps, upscale)
        paths.append(path)
        clips.append(frames)
    contact_sheet(save_dir / SHEET, clips, request.prompts)
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.infer", description="Videos from prompts and a checkpoint."
    )
    parser.add_argument("config", help="config file, its short name, or a run's config.json")
    parser.add_argument(
        "--ckpt-path",
        type=Path,
        required=True,
        help="checkpoint, run directory (its newest checkpoint), or file of weights",
    )
    parser.add_argument(
        "--prompt-path", type=Path, help="one prompt a line; default sample.prompts"
    )
    parser.add_argument("--save-dir", type=Path, default=Path("samples"))
    parser.add_argument("--weights", choices=("ema", "model"), default="ema")
    parser.add_argument("--num-frames", type=_at_least_one)
    parser.add_argument(
        "--image-size", type=_at_least_one, nargs=2, metavar=("H", "W"), help="pixels"
    )
    parser.add_argument("--fps", type=float, help="told to the model and written into the file")
    parser.add_argument("--num-sampling-steps", type=_at_least_one)
    parser.add_argument("--cfg-scale", type=float, help="guidance; 1 is none and twice as fast")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--batch-size", type=_at_least_one, help="videos at once")
    parser.add_argument(
        "--upscale", type=_at_least_one, default=1, help="enlarge pixels by a whole factor"
    )
    args, overrides = parser.parse_known_args(argv)
    try:
        paths = _run(args, overrides)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        return error.exit_code
    print(paths[0].parent)
    return 0


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _run(args: argparse.Namespace, overrides: list[str]) -> list[Path]:
    began = time.monotonic()
    config = _load_config(args.config, overrides)
    said = {name: getattr(args, name) for name in _SAMPLE_FLAGS if getattr(args, name) is not None}
    config = dataclasses.replace(config, sample=dataclasses.replace(config.sample, **said))
    prompt_path = args.prompt_path or config.sample.prompts
    if prompt_path is None:
        raise ConfigError("there are no prompts", hint="--prompt-path FILE, one prompt a line")
    prompts = read_prompts(Path(prompt_path), _say)
    # A run directory stands for its newest complete checkpoint.
    is_run = (args.ckpt_path / checkpoints.LATEST).is_file()
    paths = infer(
        config,
        checkpoints.find(args.ckpt_path) if is_run else args.ckpt_path,
        prompts,
        args.save_dir,
        ema=args.weights == "ema",
        upscale=args.upscale,
        say=_say,
        progress=_Progress(len(prompts)),
    )
    _say(f"{len(paths)} videos in {time.monotonic() - began:.1f} s")
    return paths


def _load_config(name: str, overrides: list[str]) -> Config:
    if not name.endswith(".json"):
        return configuration.load(name, overrides)
    try:
        data = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} is no run's config: {error}") from None
    if overrides:
        raise ConfigError(f"a run's config.json takes no overrides, here {overrides[0]}")
    return configuration.from_dict(data.get("config", data))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Progress:
    """A line that renews itself on a terminal, a line every tenth of the way elsewhere."""

    def __init__(self, videos: int) -> None:
        self._videos, self._began, self._tenth = videos, time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        spent_s = time.monotonic() - self._began
        left = f", {spent_s / done * (total - done):.0f} s left" if done else ""
        text = f"sampling {self._videos} videos: step {done + 1} of {total}{left}"
        if sys.stderr.isatty():
            end = "\n" if done + 1 == total else ""
            print(f"\r\x1b[2K{text}", end=end, file=sys.stderr, flush=True)
        elif done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            _say(text)


if __name__ == "__main__":
    sys.exit(main())
