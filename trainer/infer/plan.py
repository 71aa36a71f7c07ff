"""A request, checked as far as it can be before the model is loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from trainer.captions import clean_caption
from trainer.checkpoint.files import AVERAGE_PARTS, SAMPLER, SCHEDULE, SEEN
from trainer.components import TINY_T5
from trainer.config.load import Config, to_dict
from trainer.errors import ConfigError
from trainer.infer import files
from trainer.infer.files import State
from trainer.infer.prompts import Prompt, parse_prompts
from trainer.infer.references import ReferenceFiles, split_paths
from trainer.infer.request import Job, Settings, identity, plan_jobs, settings_of
from trainer.infer.sampling import groups_of
from trainer.runlog import telemetry
from trainer.weights import checkpoints
from trainer.weights.source import find_source

_CHECKPOINT = re.compile(r"(\.tmp-.*)?epoch\d+-global_step\d+")


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked beside the config's `sample` section."""

    references: Sequence[str] = ()
    strategies: Sequence[str] = ()
    name: str = "sample"
    named_by_prompt: bool = False
    start: int = 0  # of the prompts
    end: int | None = None
    ema: bool = True
    clean: bool | None = None  # captions, as upstream's inference; None: if the encoder is a T5
    upscale: int = 1
    overwrite: bool = False
    allow_partial: bool = False  # weights that give less than 99 % of the model
    run_dir: Path | None = None  # whose own text encoder serves weights that have none beside them


@dataclass(frozen=True, slots=True)
class Rank:
    """Which process of how many this is."""

    rank: int = 0
    world: int = 1
    local: int = 0
    on_host: int = 1  # processes on this machine

    @classmethod
    def from_environment(cls) -> Rank:
        """As torchrun and our launcher say it; one process without them."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, world, local, on_host = (os.environ.get(name) for name in names)
        if rank is None:
            return cls()
        try:
            found = cls(int(rank), int(world or ""), int(local or "0"), int(on_host or world or ""))
        except ValueError:
            raise ConfigError(
                f"RANK is {rank!r} but WORLD_SIZE is {world!r}; start with torchrun"
            ) from None
        if not 0 <= found.rank < found.world:
            raise ConfigError(f"RANK {found.rank} is not below WORLD_SIZE {found.world}")
        return found


@dataclass(frozen=True)
class Plan:
    """A checked request."""

    config: Config
    settings: Settings
    checkpoint: Path | str
    run_dir: Path  # where a text encoder of the run's own lies
    save_dir: Path
    options: Options
    jobs: tuple[Job, ...]
    identities: dict[Path, str] = field(repr=False)

    def state(self, job: Job) -> State:
        """What stands under the job's name at this moment."""
        return files.state_of(job.path, self.identities[job.path])


def prepare(
    config: Config,
    checkpoint: Path | str,
    prompts: Sequence[str],
    save_dir: Path,
    options: Options | None = None,
) -> Plan:
    """Check everything that can be checked without loading the model.

    `checkpoint` is one, a run directory (its newest is taken), or any source of weights. Raises
    ConfigError and CheckpointError.
    """
    options = options or Options()
    settings = settings_of(config)
    parsed = parse_prompts(prompts, options.references, options.strategies)
    chosen = parsed[options.start : options.end]
    if not chosen:
        raise ConfigError(
            f"--start-index {options.start} to --end-index {options.end} leave none of "
            f"{len(parsed)} prompts"
        )
    clean = config.text_encoder.type == "t5" if options.clean is None else options.clean
    chosen = tuple(_final(prompt, settings, clean) for prompt in chosen)
    if clean and settings.negative_prompt is not None:
        settings = dataclasses.replace(
            settings, negative_prompt=clean_caption(settings.negative_prompt)
        )
    jobs = plan_jobs(
        chosen, settings, save_dir, options.name, named_by_prompt=options.named_by_prompt
    )
    with closing(ReferenceFiles()) as reference_files:
        references = {
            prompt.index: _references(prompt, settings, reference_files) for prompt in chosen
        }
    files.require_folder(save_dir)
    checkpoint = _found(checkpoint)
    made_of = _made_of(config, checkpoint, options)
    identities = {
        job.path: identity(job, settings, references[job.prompt.index], made_of) for job in jobs
    }
    run_dir = _run_dir(config, checkpoint, options)
    plan = Plan(config, settings, checkpoint, run_dir, save_dir, options, tuple(jobs), identities)
    refuse_others(plan, jobs)
    return plan


def refuse_others(plan: Plan, jobs: Sequence[Job]) -> None:
    """Raise ConfigError where another request's video stands under the name of one of these."""
    if plan.options.overwrite:
        return
    others = [job for job in jobs if plan.state(job) is State.OTHER]
    if others:
        raise ConfigError(
            f"{others[0].path} already exists and is another video ({len(others)} of {len(jobs)}): "
            "made from another checkpoint, prompt, seed or size",
            hint="another --save-dir, or --overwrite",
        )


def _final(prompt: Prompt, settings: Settings, clean: bool) -> Prompt:
    """The prompt as the encoder reads it: scores behind it, then cleaned, as upstream does."""

    def final(text: str) -> str:
        text = settings.scores.append(text)
        return clean_caption(text) if clean else text

    result = prompt.map(final)
    if not all(text for _, text in result.parts):
        raise ConfigError(
            f"prompt {prompt.index} is empty after cleaning: {prompt.text!r}",
            hint="--no-clean-caption gives it to the encoder as it is",
        )
    return result


def _references(prompt: Prompt, settings: Settings, known: ReferenceFiles) -> tuple[str, ...]:
    """The files a prompt starts from, each of which can be read. Raises ConfigError."""
    where = f"prompt {prompt.index}"
    paths = split_paths(prompt.reference_path)
    for path in paths:
        known.length(path, where)
    for group in groups_of(Job(prompt, 0, Path())):
        if group.loop >= settings.loop:
            raise ConfigError(
                f"{where}: its mask strategy names loop {group.loop}, counted from 0, of "
                f"{settings.loop}"
            )
    return paths


def _found(checkpoint: Path | str) -> Path | str:
    """Of our own run directories and checkpoints only whole ones; everything else as it is."""
    path = Path(checkpoint)
    ours = path / checkpoints.LATEST, path / checkpoints.MANIFEST, path / telemetry.FILE
    is_ours = any(file.is_file() for file in ours) or _is_half(path)
    is_ours = is_ours or (path.is_dir() and bool(checkpoints.complete(path)))
    return checkpoints.find(path) if is_ours else checkpoint


def _is_half(path: Path) -> bool:
    """Whether a folder is a checkpoint of ours that lacks its end; upstream's have the same names.

    Ours hold files that upstream's never do, or lie in a run directory of ours.
    """
    if not _CHECKPOINT.fullmatch(path.name) or not path.is_dir():
        return False
    own = (SAMPLER, SEEN, SCHEDULE, AVERAGE_PARTS)
    run = path.absolute().parent / telemetry.FILE
    return run.is_file() or any((path / name).exists() for name in own)


def _run_dir(config: Config, checkpoint: Path | str, options: Options) -> Path:
    """The run that a checkpoint lies in, else the one that is asked for. Raises ConfigError."""
    beside = Path(checkpoint).absolute().parent
    runs = [beside] if options.run_dir is None else [beside, options.run_dir]
    if config.text_encoder.type != "tiny_t5":
        return beside
    for run in runs:
        if (run / TINY_T5).is_dir():
            return run
    raise ConfigError(
        f"no {TINY_T5} folder in {' or '.join(map(str, runs))}: the model needs its run's text "
        "encoder",
        hint="give the run directory that made these weights as CONFIG",
    )


def _made_of(config: Config, checkpoint: Path | str, options: Options) -> str:
    """Which weights of which model, and what is done to the pixels after it."""
    manifest = Path(checkpoint) / checkpoints.MANIFEST
    if manifest.is_file():  # sizes and hashes of all its files, wherever it was moved
        weights = hashlib.sha256(manifest.read_bytes()).hexdigest()
    else:
        source = find_source(checkpoint)
        average = source.average.files if source.average is not None else ()
        facts = [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns)
            for file in (*source.files, *average)
        ]
        weights = json.dumps(facts)
    whole = to_dict(config)
    parts = {name: whole[name] for name in ("model", "vae", "text_encoder", "scheduler")}
    return json.dumps([weights, parts, options.ema, options.upscale], sort_keys=True)
