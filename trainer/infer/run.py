"""The videos of a checked request: made by this rank, written file by file."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.components import build_parts
from trainer.engine.base import set_threads
from trainer.infer import files
from trainer.infer.files import State
from trainer.infer.plan import Plan, Rank, refuse_others
from trainer.infer.request import Job, share_of
from trainer.infer.sampling import Progress, Sampler
from trainer.models import memory
from trainer.models.text import TextEncoder
from trainer.pictures import contact_sheet
from trainer.runlog.output import LOG
from trainer.weights.load import load_into

SHEET = "contact_sheet.png"
_ON_SHEET = 400  # videos; a longer sheet is too large to view


def carry_out(
    plan: Plan, rank: Rank | None = None, *, progress: Progress | None = None
) -> list[Path]:
    """Make this rank's share of the videos that are not finished; returns what was made.

    Each file appears whole. Whoever finds all of the plan finished draws the contact sheet: that is
    the rank that ends last. Raises OutOfMemory, VideoError, ConfigError and CheckpointError.
    """
    rank = rank or Rank()
    mine = share_of(plan.jobs, rank.rank, rank.world)
    states = {job.path: plan.state(job) for job in mine}
    todo = [job for job in mine if states[job.path] is not State.FINISHED]
    broken = [job for job in todo if states[job.path] is State.BROKEN]
    if len(todo) < len(mine):
        LOG.info(f"{len(mine) - len(todo)} of {len(mine)} videos already exist")
    if broken:
        LOG.info(f"{broken[0].path.name} is incomplete and made again ({len(broken)} such)")
    made = _make(plan, rank, todo, progress) if todo else []
    if all(plan.state(job) is State.FINISHED for job in plan.jobs):
        sheet = plan.save_dir / SHEET
        if made or not sheet.is_file():
            _draw(plan, sheet)
    return made


def _device(rank: Rank) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(f"cuda:{rank.local % torch.cuda.device_count()}")


def _make(plan: Plan, rank: Rank, todo: Sequence[Job], progress: Progress | None) -> list[Path]:
    device = _device(rank)
    LOG.info("loading the text encoder, the VAE and the model")
    set_threads(plan.config.threads, rank.on_host, device.type != "cpu")
    with memory.as_one_sentence(
        device, "the model and its encoders", "a smaller text encoder or model, or dtype = bf16"
    ):
        sampler = _sampler(plan, device)
    _tell_cut(sampler.parts.text, todo)
    made = []
    for job, frames in sampler.videos(todo, progress):
        refuse_others(plan, [job])  # another process may have written here meanwhile
        files.write(
            job.path,
            frames,
            plan.settings.save_fps,
            plan.identities[job.path],
            job.prompt.text,
            plan.options.upscale,
        )
        made.append(job.path)
    return made


def _tell_cut(text: TextEncoder, jobs: Sequence[Job]) -> None:
    """Name the prompts whose ends the text encoder does not read."""
    prompts = {job.prompt.index: job.prompt for job in jobs}
    cut = [
        prompt
        for prompt in prompts.values()
        for _, part in prompt.parts
        if len(text.tokenizer(part, verbose=False)["input_ids"]) > text.max_length
    ]
    if cut:
        LOG.info(
            f"{len(cut)} prompts are longer than the {text.max_length} tokens that the model reads "
            f"and are cut there; the first is prompt {cut[0].index}"
        )


def _sampler(plan: Plan, device: torch.device) -> Sampler:
    config, options = plan.config, plan.options
    dtype = torch.bfloat16 if config.dtype == "bf16" and device.type == "cuda" else torch.float32
    parts = build_parts(config, plan.run_dir, dtype, empty=True)
    report = load_into(
        parts.model, plan.checkpoint, ema=options.ema, allow_partial=options.allow_partial
    )
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
    back = functools.partial(files.read, upscale=plan.options.upscale)
    with files.as_one_sentence(sheet):
        contact_sheet(
            sheet, map(back, (job.path for job in shown)), [job.prompt.text for job in shown]
        )
