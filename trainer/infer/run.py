"""The videos of a checked request: made by this rank, written file by file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.components import build_parts
from trainer.device import choose_device
from trainer.engine.base import set_threads
from trainer.engine.process_group import Rank
from trainer.infer import files
from trainer.infer.jobs import Job
from trainer.infer.prepare import Plan
from trainer.infer.prompts import Prompt
from trainer.infer.sampling import Progress, Sampler, counted
from trainer.models import memory
from trainer.models.text import TextEncoder
from trainer.pictures import contact_sheet
from trainer.runlog import samples
from trainer.runlog.output import LOG
from trainer.weights import checkpoints
from trainer.weights.load import load_into

_ON_SHEET = 400  # videos; a longer sheet is too large to view


def carry_out(plan: Plan, rank: Rank, progress: Progress) -> list[Path]:
    """Make this rank's share of the videos that are not finished; returns what was made. Each file
    appears whole. The rank that finds all of the plan finished, which is the one that ends last,
    draws the contact sheet and writes the index. Raises OutOfMemory, VideoError, ConfigError and
    CheckpointError."""
    # Of the whole plan, never of what is finished: ranks look at different moments.
    mine = plan.jobs[rank.rank :: rank.world]
    states = {job.path: plan.state(job) for job in mine}
    todo = [job for job in mine if states[job.path] is not files.State.FINISHED]
    broken = [job for job in todo if states[job.path] is files.State.BROKEN]
    if len(todo) < len(mine):
        LOG.info(f"already made: {len(mine) - len(todo)} of {counted(len(mine))}")
    if broken:
        LOG.info(f"{broken[0].path.name} is incomplete and made again ({len(broken)} such)")
    made = _make(plan, rank, todo, progress) if todo else []
    if all(plan.state(job) is files.State.FINISHED for job in plan.jobs):
        sheet = plan.options.save_dir / samples.SHEET
        if made or not sheet.is_file():
            _draw(plan, sheet)
        index = plan.options.save_dir / samples.INDEX
        with files.as_one_sentence(index):
            samples.write(plan.options.save_dir, _index(plan))
    return made


def _make(plan: Plan, rank: Rank, todo: Sequence[Job], progress: Progress) -> list[Path]:
    device = choose_device(rank.local_rank)
    LOG.info("loading the text encoder, the VAE and the model")
    set_threads(plan.config.threads, rank.on_host, device.type != "cpu")
    less = "a smaller text encoder or model, or dtype = bf16"
    with memory.as_one_sentence(device, "the model and its encoders", less):
        sampler = _sampler(plan, device)
    _report_cut(sampler.parts.text, todo)
    save_fps, upscale = plan.settings.save_fps, plan.options.upscale
    for job, frames in sampler.videos(todo, progress):
        plan.refuse_others([job])  # another process may have written here meanwhile
        files.write(job.path, frames, save_fps, plan.identities[job.path], job.prompt.text, upscale)
    return [job.path for job in todo]


def _report_cut(text: TextEncoder, jobs: Sequence[Job]) -> None:
    """Name the prompts whose ends the text encoder does not read."""

    def is_cut(prompt: Prompt) -> bool:
        tokens = [text.tokenizer(part, verbose=False)["input_ids"] for _, part in prompt.parts]
        return any(len(ids) > text.max_length for ids in tokens)

    prompts = {job.prompt.index: job.prompt for job in jobs}
    if cut := list(filter(is_cut, prompts.values())):
        LOG.info(
            f"{len(cut)} prompts are longer than the {text.max_length} tokens that the model reads "
            f"and are cut there; the first is {cut[0].where}"
        )


def _sampler(plan: Plan, device: torch.device) -> Sampler:
    config, options = plan.config, plan.options
    dtype = torch.bfloat16 if config.dtype == "bf16" and device.type == "cuda" else torch.float32
    parts = build_parts(config, plan.run_dir, dtype, empty=True)
    ema, partial = options.weights == "ema", options.allow_partial
    report = load_into(parts.model, plan.checkpoint, ema=ema, allow_partial=partial)
    for line in report.lines() if not report.is_whole else report.notes:
        LOG.info(line)
    parts.model.to(device, dtype)
    parts.text.to(device)
    parts.vae.to(device)
    return Sampler(parts, plan.settings, device)


def _draw(plan: Plan, sheet: Path) -> None:
    shown = plan.jobs[:_ON_SHEET]
    if len(shown) < len(plan.jobs):
        LOG.info(f"the contact sheet shows the first {len(shown)} of {len(plan.jobs)} videos")
    clips = (files.read(job.path, plan.options.upscale) for job in shown)
    with files.as_one_sentence(sheet):
        contact_sheet(sheet, clips, [job.prompt.text for job in shown])


def _index(plan: Plan) -> samples.Samples:
    """What the folder holds, for those who show it."""
    frames, height, width, _ = files.read(plan.jobs[0].path).shape
    step, epoch = checkpoints.counts_of(str(plan.checkpoint))
    settings = plan.settings
    return samples.Samples(
        checkpoint=str(plan.checkpoint) if step is None else Path(plan.checkpoint).name,
        step=step,
        epoch=epoch,
        weights=plan.weights,
        preset=plan.options.preset_name,
        settings=settings.describe(),
        fps=settings.save_fps,
        frames=frames,
        height=height,
        width=width,
        videos=tuple(
            samples.Video(
                job.path.relative_to(plan.options.save_dir).as_posix(),
                job.prompt.text,
                job.prompt.index,
                job.sample,
                settings.seed,
            )
            for job in plan.jobs
        ),
    )
