"""What to make, complete: how large and how, which videos, which of them this rank makes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from trainer.allowed_values import require_allowed
from trainer.config.load import Config
from trainer.data.plan.aspect import size_of
from trainer.data.video.decode import IMAGE_FPS
from trainer.errors import ConfigError
from trainer.infer.prompts import Prompt, Scores

_SLOWEST, _FASTEST = 0.01, 1000.0  # frames a second of a file
_LONGEST_NAME = 50  # characters of a prompt in a file's name, upstream's limit


@dataclass(frozen=True, slots=True)
class Settings:
    """How videos are made; no value is left to a default later."""

    num_frames: int  # of one clip
    height: int  # pixels
    width: int
    fps: float  # given to the model
    save_fps: float  # written into the file
    steps: int
    cfg_scale: float
    seed: int
    batch_size: int
    negative_prompt: str | None
    scores: Scores
    num_sample: int
    loop: int
    condition_frame_length: int  # latent frames
    condition_frame_edit: float
    align: int | None  # latent frames; None is the VAE's chunk
    resize: str  # of references, as of the clips in training

    def describe(self) -> str:
        clips = f"{self.loop} clips of {self.num_frames}" if self.loop > 1 else self.num_frames
        seconds = f"{clips} frames of {self.height}x{self.width} at {self.save_fps:g} fps"
        return f"{seconds}, {self.steps} steps, guidance {self.cfg_scale:g}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Job:
    """One video: a prompt and which of its samples."""

    prompt: Prompt
    sample: int
    path: Path


def settings_of(config: Config) -> Settings:
    """`sample` filled from the config's other sections. Raises ConfigError."""
    sample, flow = config.sample, config.scheduler
    require_allowed(type(sample), vars(sample), lambda name: f"sample.{name}")
    size = sample.image_size
    if size is None and sample.resolution is not None:
        size = size_of(sample.resolution, sample.aspect_ratio or "9:16")
    if sample.num_frames is None or size is None:
        hint = "--num-frames 4s --resolution 240p --aspect-ratio 9:16, or --image-size 144 256"
        raise ConfigError("the size of the videos is not set", hint=hint)
    names = {field.name for field in fields(Settings)}
    values = {name: value for name, value in vars(sample).items() if name in names} | {
        "height": size[0],
        "width": size[1],
        # Upstream's models are given 120 for stills, in training and here.
        "fps": IMAGE_FPS if sample.num_frames == 1 else sample.fps,
        "save_fps": sample.save_fps or sample.fps / sample.frame_interval,
        "steps": sample.num_sampling_steps or flow.num_sampling_steps,
        "cfg_scale": flow.cfg_scale if sample.cfg_scale is None else sample.cfg_scale,
        "scores": Scores(sample.aes, sample.flow, sample.camera_motion),
        "resize": config.dataset.resize,
    }
    settings = Settings(**values)
    if not _SLOWEST <= settings.save_fps <= _FASTEST:
        raise ConfigError(
            f"the video would play at {settings.save_fps:g} frames a second; "
            f"{_SLOWEST:g} to {_FASTEST:g} can be written",
            hint="--save-fps, or --fps and --frame-interval",
        )
    if settings.negative_prompt is not None and settings.cfg_scale == 1:
        raise ConfigError("a negative prompt needs guidance: --cfg-scale above 1")
    if settings.loop > 1 and settings.num_frames == 1:
        raise ConfigError("an image cannot be extended: --loop needs more than 1 frame")
    is_upstream = flow.use_timestep_transform and flow.timestep_transform == "upstream"
    if is_upstream and 1 < settings.num_frames < 17:
        raise ConfigError(
            f"upstream's timestep transform makes every time 0 for 2 to 16 frames, here "
            f"{settings.num_frames}, and noise would stay noise",
            hint="--scheduler.timestep-transform true-length, or 17 frames and more",
        )
    return settings


def plan_jobs(
    prompts: Sequence[Prompt],
    settings: Settings,
    save_dir: Path,
    name: str = "sample",
    *,
    named_by_prompt: bool = False,
) -> list[Job]:
    """Every video in order. Raises ConfigError when two would have one name."""
    suffix = ".png" if settings.num_frames == 1 else ".mp4"
    jobs, taken = [], set()
    for prompt in prompts:
        for sample in range(settings.num_sample):
            stem = f"{name}_{prompt.index:04d}"
            if named_by_prompt:
                text = re.sub(r"[/\\\0\n]", "_", prompt.text)[:_LONGEST_NAME]
                stem = text.strip(". ") or "prompt"
            more = f"-{sample}" if settings.num_sample > 1 else ""
            path = save_dir / f"{stem}{more}{suffix}"
            if path in taken:
                raise ConfigError(
                    f"two prompts would both be {path.name}; leave out --prompt-as-path"
                )
            taken.add(path)
            jobs.append(Job(prompt, sample, path))
    return jobs


def identity(job: Job, settings: Settings, made_of: str) -> str:
    """A short name of what decides a video's pixels; `made_of` describes weights and model."""
    how = asdict(settings)
    del how["batch_size"], how["num_sample"]
    prompt = job.prompt
    files = [(path, Path(path).stat()) for path in prompt.references]
    stats = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in files]
    facts = [how, [prompt.parts, prompt.mask_strategy], prompt.index, job.sample, stats, made_of]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
