"""A request, checked as far as it can be before the model is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trainer.captions import clean_caption
from trainer.checkpoint.files import AVERAGE_PARTS, RUNNING, SAMPLER, SCHEDULE, SEEN, read_document
from trainer.components import TINY_T5
from trainer.config.load import Config, to_dict
from trainer.errors import CheckpointError, ConfigError
from trainer.infer import vbench
from trainer.infer.conditions import ReferenceFiles, groups_of
from trainer.infer.files import State, require_folder, state_of
from trainer.infer.jobs import Job, Settings, identity, plan_jobs, settings_of
from trainer.infer.prompts import Prompt, parse_prompts
from trainer.models.attention.table import Table, read_table
from trainer.runlog import telemetry
from trainer.runlog.atomic_file import sha256_of
from trainer.runlog.checkpoint_name import IN_TEXT
from trainer.runlog.output import LOG
from trainer.weights import checkpoints
from trainer.weights.source import find_source

_SHOWN = 500  # characters of what a checkpoint says
_CHECKPOINT = re.compile(rf"(\.tmp-.*)?{IN_TEXT}")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command that are no key of the config, by their names."""

    reference_path: Sequence[str]
    mask_strategy: Sequence[str]
    save_dir: Path
    sample_name: str
    prompt_as_path: bool
    start_index: int
    end_index: int | None
    weights: str  # ema or model
    clean_caption: bool | None  # as upstream's inference; None: if the encoder is a T5
    upscale: int
    overwrite: bool
    allow_partial: bool  # weights that give less than 99 % of the model
    run_dir: Path | None  # whose text encoder serves weights that have none beside them
    preset_name: str  # of these settings, for the index; "" without one
    vbench: Path | None  # VBench's list of prompts, or prompt files
    dimensions: Sequence[str]  # of VBench; none: all


@dataclass(frozen=True)
class Plan:
    config: Config
    settings: Settings
    checkpoint: Path | str
    weights: str  # ema or model: what is used
    run_dir: Path  # which holds the run's text encoder
    options: Options
    jobs: Sequence[Job]
    identities: dict[Path, str]
    made_of: str  # the weights, and what else decides the pixels

    def state(self, job: Job) -> State:
        return state_of(job.path, self.identities[job.path])

    def refuse_others(self, jobs: Sequence[Job]) -> None:
        """Raise ConfigError where the path of one of these holds another request's video."""
        if self.options.overwrite:
            return
        if others := [job for job in jobs if self.state(job) is State.OTHER]:
            raise ConfigError(
                f"{others[0].path} already exists and is another video ({len(others)} of "
                f"{len(jobs)}): made from another checkpoint, prompt, seed or size, "
                "or with other kernels, positions or dtype",
                hint="another --save-dir, or --overwrite",
            )


def prepare(
    config: Config, checkpoint: Path | str, prompts: Sequence[str], options: Options
) -> Plan:
    """Check what can be checked without loading the model. `checkpoint` is one, a run directory or
    any source of weights. Raises ConfigError and CheckpointError."""
    settings = settings_of(config)
    suite: vbench.Suite = {}
    if options.vbench is not None:
        suite = vbench.read_suite(options.vbench, options.dimensions)
        if settings.num_frames == 1:
            raise ConfigError("VBench judges videos, not stills", hint="--num-frames 2s")
    parsed = tuple(suite) or parse_prompts(prompts, options.reference_path, options.mask_strategy)
    chosen = parsed[options.start_index : options.end_index]
    if not chosen:
        span = f"--start-index {options.start_index} to --end-index {options.end_index}"
        raise ConfigError(f"{span} leave none of {len(parsed)} prompts")
    clean = options.clean_caption
    clean = config.text_encoder.type == "t5" if clean is None else clean
    chosen = tuple(_final(prompt, settings, clean) for prompt in chosen)
    if clean and settings.negative_prompt is not None:
        negative = clean_caption(settings.negative_prompt)
        settings = replace(settings, negative_prompt=negative)
    name, save_dir = options.sample_name, options.save_dir
    if suite:
        jobs = vbench.plan_jobs(suite, chosen, save_dir)
    else:
        jobs = plan_jobs(chosen, settings, save_dir, name, named_by_prompt=options.prompt_as_path)
    with closing(ReferenceFiles()) as reference_files:
        for prompt in chosen:
            _check_references(prompt, settings.loop, reference_files)
    require_folder(save_dir)
    checkpoint = _found(checkpoint)
    if clean and options.clean_caption is None and (note := _raw_captions(checkpoint)):
        LOG.warning("warning: %s", note)
    made_of = _made_of(config, checkpoint, options)
    identities = {job.path: identity(job, settings, made_of) for job in jobs}
    run_dir = _run_dir(config, checkpoint, options)
    is_ema = options.weights == "ema" and find_source(checkpoint).average is not None
    weights = "ema" if is_ema else "model"
    ways = checkpoint, weights, run_dir, options, jobs, identities, made_of
    plan = Plan(config, settings, *ways)
    plan.refuse_others(jobs)
    return plan


def _final(prompt: Prompt, settings: Settings, clean: bool) -> Prompt:
    """The prompt as the encoder reads it: scores behind it, then cleaned, as upstream does."""
    result = prompt.map(settings.scores.append)
    if clean:
        result = result.map(clean_caption)
    if not all(text for _, text in result.parts):
        empty = f"{prompt.where} is empty after cleaning: {prompt.text!r}"
        raise ConfigError(empty, hint="--no-clean-caption gives it to the encoder as it is")
    return result


def _raw_captions(checkpoint: Path | str) -> str:
    """Where the run was trained on captions as they are, which prompts are not: they are cleaned.
    "" where the checkpoint says nothing of it."""
    try:
        captions = read_document(Path(checkpoint) / RUNNING).get("captions", "")
    except CheckpointError:
        return ""
    if not isinstance(captions, str) or not captions:
        return ""
    return (
        f"prompts are cleaned (lower case, no HTML), and {checkpoint} was trained on captions that "
        f"are not: {captions[:_SHOWN]}"
    )


def _check_references(prompt: Prompt, loops: int, files: ReferenceFiles) -> None:
    """Each file that a prompt starts from can be read. Raises ConfigError."""
    for path in prompt.references:
        files.length(path, prompt.where)
    for group in groups_of(prompt):
        if group.loop >= loops:
            raise ConfigError(
                f"{prompt.where}: its mask strategy names loop {group.loop}, counted from 0, "
                f"of {loops}"
            )


def _found(checkpoint: Path | str) -> Path | str:
    """Of our own run directories and checkpoints only complete ones; everything else as it is."""
    path = Path(checkpoint)
    marks = [path / checkpoints.LATEST, path / checkpoints.MANIFEST, path / telemetry.FILE]
    parts: list[Path] = []
    if path.is_dir() and _CHECKPOINT.fullmatch(path.name):
        # Without a manifest, upstream's have the same names. Ours hold files that upstream's never
        # do, or are in a run directory of ours.
        marks.append(path.absolute().parent / telemetry.FILE)
        parts = [path / name for name in (SAMPLER, SEEN, SCHEDULE, AVERAGE_PARTS)]
    is_ours = any(map(Path.is_file, marks)) or any(map(Path.exists, parts))
    if is_ours or (path.is_dir() and checkpoints.complete(path)):
        return checkpoints.find(path)
    return checkpoint


def _run_dir(config: Config, checkpoint: Path | str, options: Options) -> Path:
    """The run that has the checkpoint, else the one of the options. Raises ConfigError."""
    beside = Path(checkpoint).absolute().parent
    runs = [beside] if options.run_dir is None else [beside, options.run_dir]
    if config.text_encoder.type != "tiny_t5":
        return beside
    for run in runs:
        if (run / TINY_T5).is_dir():
            return run
    where = " or ".join(map(str, runs))
    text = f"no {TINY_T5} folder in {where}: the model needs its run's text encoder"
    raise ConfigError(text, hint="give the run directory that made these weights as CONFIG")


_NUMERICS = ("positions", "dtype")


def _made_of(config: Config, checkpoint: Path | str, options: Options) -> str:
    """Which weights of which model, and what is done to the pixels after it."""
    manifest = Path(checkpoint) / checkpoints.MANIFEST
    if manifest.is_file():  # sizes and hashes of all its files, wherever it was moved
        weights = sha256_of(manifest)
    else:
        source = find_source(checkpoint)
        average = source.average.files if source.average is not None else ()
        found = [(file.name, file.stat()) for file in (*source.files, *average)]
        weights = json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in found])
    whole = to_dict(config)
    parts = {name: whole[name] for name in ("model", "vae", "text_encoder", "scheduler")}
    # These change the numbers of the same weights. As defaults they are left out: videos of
    # requests that were made before they counted stay theirs.
    parts |= {name: whole[name] for name in _NUMERICS if whole[name] != getattr(Config(), name)}
    path = config.attention_table
    table = Table() if path is None else read_table(path)  # its kernels, wherever the file lies
    parts |= {} if table == Table() else {"attention_table": asdict(table)}
    return json.dumps([weights, parts, options.weights == "ema", options.upscale], sort_keys=True)
