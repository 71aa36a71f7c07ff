"""The videos of a checked request: made by this rank, written file by file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.device import choose_device
from trainer.engine.base import set_threads
from trainer.engine.process_group import Rank
from trainer.infer import files
from trainer.infer.jobs import Job
from trainer.infer.models import Models
from trainer.infer.prepare import Plan
from trainer.infer.prompts import Prompt
from trainer.infer.sampling import Progress
from trainer.models.text import TextEncoder
from trainer.pictures import contact_sheet
from trainer.runlog import samples
from trainer.runlog.checkpoint_name import epoch_and_step
from trainer.runlog.output import LOG
from trainer.runlog.units import counted

_ON_SHEET = 400  # videos; a longer sheet is too large to view


def carry_out(plan: Plan, rank: Rank, progress: Progress) -> list[Path]:
    """Make this rank's share of the videos that are not finished; returns what was made. Each file
    appears whole. The rank that finds all of the plan finished, which is the one that ends last,
    draws the contact sheet and writes the index. Raises OutOfMemory, VideoError, ConfigError and
    CheckpointError."""
    # Of the whole plan, never of what is finished: ranks look at different moments.
    mine = plan.jobs[rank.rank :: rank.world]
    todo = unfinished(plan, mine)
    if todo:
        device = choose_device(rank.local_rank)
        set_threads(plan.config.threads, rank.on_host, device.type != "cpu")
        make(plan, todo, Models(device), progress)
    made = [job.path for job in todo]
    if all(plan.state(job) is files.State.FINISHED for job in plan.jobs):
        if made or not (plan.options.save_dir / samples.SHEET).is_file():
            draw(plan)
        write_index(plan)
    return made


def unfinished(plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    """Those to make; says what is finished and what is made again."""
    states = {job.path: plan.state(job) for job in jobs}
    todo = [job for job in jobs if states[job.path] is not files.State.FINISHED]
    broken = [job for job in todo if states[job.path] is files.State.BROKEN]
    if len(todo) < len(jobs):
        LOG.info(f"already made: {len(jobs) - len(todo)} of {counted(len(jobs), 'video')}")
    if broken:
        LOG.info(f"{broken[0].path.name} is incomplete and made again ({len(broken)} such)")
    return todo


def make(plan: Plan, todo: Sequence[Job], models: Models, progress: Progress) -> None:
    """Write the videos of these jobs. Raises as `carry_out`."""
    sampler = models.sampler(plan)
    _report_cut(sampler.parts.text, todo)
    save_fps, upscale = plan.settings.save_fps, plan.options.upscale
    for job, frames in sampler.videos(todo, progress):
        plan.refuse_others([job])  # another process may have written here meanwhile
        files.write(job.path, frames, save_fps, plan.identities[job.path], job.prompt.text, upscale)


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


def draw(plan: Plan) -> None:
    """The contact sheet of finished videos. Raises VideoError."""
    sheet = plan.options.save_dir / samples.SHEET
    shown = plan.jobs[:_ON_SHEET]
    if len(shown) < len(plan.jobs):
        LOG.info(f"the contact sheet shows the first {len(shown)} of {len(plan.jobs)} videos")
    clips = (files.read(job.path, plan.options.upscale) for job in shown)
    with files.as_one_sentence(sheet):
        contact_sheet(sheet, clips, [job.prompt.text for job in shown])


def write_index(plan: Plan) -> None:
    """What the folder holds, for those who show it. Raises VideoError."""
    index = plan.options.save_dir / samples.INDEX
    with files.as_one_sentence(index):
        samples.write(plan.options.save_dir, _index(plan))


def _index(plan: Plan) -> samples.Samples:
    frames, height, width, _ = files.read(plan.jobs[0].path).shape
    name = Path(plan.checkpoint).name
    epoch, step = epoch_and_step(name) or (None, None)  # of other weights nothing is known
    settings = plan.settings
    return samples.Samples(
        checkpoint=str(plan.checkpoint) if step is None else name,
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
