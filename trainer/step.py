"""One optimizer step: forward, backward, update; what each rank tells the others about it."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from trainer.checkpoint.async_saver import Saved, Saver
from trainer.checkpoint.failed_saves import FailedSaves
from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.loader.encode import encode
from trainer.data.loader.loader import Loader
from trainer.data.loader.microbatch import Bad, Batch, leave_out_bad
from trainer.data.plan.data_plan import DataPlan
from trainer.device import name_of
from trainer.diffusion.draws import Drawing, Given
from trainer.engine.agreement import agreed, attempt
from trainer.engine.base import Engine
from trainer.engine.device_clock import DeviceClock
from trainer.engine.step_figures import StepFigures, require_numbers
from trainer.errors import TooManyBadSamples, TrainerError
from trainer.guards.guards import Guards
from trainer.journal import Journal
from trainer.models.flops import forward_flops
from trainer.optim.ema import EMA
from trainer.optim.lr_schedules import Schedule
from trainer.optim.norms import square_sum
from trainer.runlog import units
from trainer.runlog.figures import peak_flops
from trainer.runlog.telemetry import Clock
from trainer.slow_ranks.watch import SlowRanks
from trainer.step_report import StepReport, by_time
from trainer.validation.measure import Validation
from trainer.warm_up import WarmUp


@dataclass
class Run:
    """Everything a run is made of; `train` moves it forward."""

    config: Config
    engine: Engine
    parts: Parts
    plan: DataPlan
    loader: Loader
    ema: EMA
    schedule: Schedule
    journal: Journal
    guards: Guards
    saver: Saver
    run_dir: Path
    clock: Clock
    model: torch.nn.Module
    warm_up: WarmUp | None = None
    validation: Validation | None = None
    step: int = 0  # over the whole run, those that a guard skipped among them
    samples: int = 0
    bad_clips: set[str] = field(default_factory=set)  # paths; on all ranks those of all ranks
    captions: str = ""  # how they differ from what sampling makes of prompts; of rank 0
    saved_at: int = -1
    stop_requested: bool = False
    drawing: Drawing = field(init=False)
    slow_ranks: SlowRanks = field(init=False)
    failed_saves: FailedSaves = field(init=False)
    report: StepReport = field(init=False)

    def __post_init__(self) -> None:
        parts, device = self.parts, self.engine.device
        draw_kept = parts.model.draw_kept
        self.drawing = Drawing(self.config.seed, parts.flow, parts.masks, device, draw_kept)
        self.slow_ranks = SlowRanks(self.engine, self.journal.event)
        self.failed_saves = FailedSaves(self.engine, self.config, self.journal.event)
        self.report = StepReport(
            self.config,
            self.plan.buckets,
            is_sharded=self.engine.is_sharded,
            on_device=isinstance(self.clock, DeviceClock),
            first=self.step,
            attempt=self.journal.attempt,
            peak_flops=peak_flops(name_of(device), self.config.dtype),
        )

    @property
    def steps_total(self) -> int:
        """Where this run ends; exact for the epoch at hand, an estimate for later ones."""
        later = max(0, self.config.epochs - self.loader.cursor.epoch - 1)
        each = self.config.accumulation_steps
        whole = len(self.plan.epoch(self.loader.cursor.epoch)) // (self.engine.world * each)
        total = self.step + len(self.loader) // each + later * whole
        return total if self.config.max_steps is None else min(self.config.max_steps, total)

    @property
    def is_over(self) -> bool:
        if self.config.max_steps is not None and self.step >= self.config.max_steps:
            return True
        return self.loader.next_place(self.config.epochs) is None


@dataclass
class Share:
    """What this rank did in a step: numbers for the others, and what it reports itself."""

    figures: StepFigures = field(default_factory=StepFigures)
    # These two stay on the device until the end of the step.
    losses: list[Tensor] = field(default_factory=list)  # of each microbatch its part of the step's
    by_time: Tensor | float = 0.0  # [2, bands], see `by_time`
    buckets: dict[str, None] = field(default_factory=dict)  # in order, each once
    bad: list[Bad] = field(default_factory=list)
    lasting: dict[str, str] = field(default_factory=dict)  # see `Failures`
    failure: TrainerError | None = None  # why this rank has no batch


def step(run: Run, batches: Iterator[Batch]) -> bool:
    """One optimizer step; returns whether all ranks agreed to stop after it."""
    engine, clock, number = run.engine, run.clock, run.step + 1
    # since the step before: what this one waited for, and the average's update
    start = time.perf_counter() - sum(clock.seconds.values())
    waited, share, each = engine.waited_s, Share(), run.config.accumulation_steps
    for left in range(each - 1, -1, -1):
        _microbatch(run, _next(run, batches, share), share, left)
    if run.saver.is_copying:
        with clock.phase("checkpoint", number):
            run.saver.hold()
    with clock.phase("optimizer", number):
        lr = run.schedule.lr
        limit = run.guards.begin(run.loader.cursor, engine.world * each)
        on_device = update(run, limit, measured=run.config.is_measured(number))
    # Where the host waits for a GPU: all phases have ended there when these are read.
    losses, by_time, (grad_norm, square, moved, apart) = engine.read(
        torch.stack(share.losses), torch.as_tensor(share.by_time), torch.stack(on_device)
    )

    step_s, seconds = time.perf_counter() - start, clock.take()
    waited = engine.waited_s - waited
    own_s, own_backward = step_s - waited, seconds["backward"] - waited
    own_forward = seconds["forward"] if engine.forward_is_local else 0.0
    if isinstance(clock, DeviceClock):
        own_s = clock.own_s
        own_backward = own_s - seconds["data"] - seconds["encode"] - own_forward
    memory_bytes, memory_reserved_bytes = _memory(engine)
    own = replace(
        share.figures,
        **seconds,
        loss=sum(losses),
        losses=tuple(each * loss for loss in losses),
        by_time=tuple(by_time),
        bad=len(share.bad),
        failed=share.failure is not None,
        grad_norm=grad_norm,
        square=square,
        moved=moved,
        apart=apart,
        step_s=step_s,
        own_s=own_s,
        own_forward=own_forward,
        own_backward=max(0.0, own_backward) if engine.backward_is_timed else 0.0,
        asks=run.slow_ranks.asks,
        memory_bytes=memory_bytes,
        memory_reserved_bytes=memory_reserved_bytes,
        stop=run.stop_requested,
        saver=run.saver.status,
    )
    ranks = [StepFigures.of(row, each) for row in engine.gather(own.numbers())]
    if any(rank.failed for rank in ranks):
        _end_without_data(run, number, share)

    run.step = number
    decay = run.ema.next_decay
    if not (is_skipped := run.guards.is_skipped(grad_norm)):
        with clock.phase("optimizer", number):  # of the next step: this one's times are taken
            run.schedule.step()
            run.ema.update(engine.master_params())
    run.samples += int(sum(rank.samples for rank in ranks))
    cells = run.loader.cells_of_step()
    record = run.report.record(
        ranks,
        cells,
        step=number,
        steps_total=run.steps_total,
        epoch=run.loader.cursor.epoch,
        lr=lr,
        skipped=is_skipped,
        bucket=", ".join(share.buckets),
        decay=1.0 if is_skipped else decay,
    )
    run.journal.step(record)
    run.slow_ranks.after(number, ranks, cells)
    for clip in share.bad:
        run.journal.bad_sample(number, engine.rank, *clip)
    statuses = [rank.saver for rank in ranks]
    report(run, run.failed_saves.take(lambda: run.saver.advance(statuses), number))
    require_numbers(number, ranks, is_skipped)
    run.guards.end(record)
    if any(rank.bad for rank in ranks):
        _count_bad(run, share)
    return any(rank.stop for rank in ranks)


def update(run: Run, limit: float | None, *, measured: bool) -> tuple[Tensor, ...]:
    """What follows the last backward pass (collective), as long as the norm of the gradients is at
    most `limit`. Returns on the device this norm, the sum of squares of this rank's fp32 weights
    after it, and where it is `measured` (NaN else) those of its change and of weights minus
    average.
    """
    engine = run.engine
    if measured:
        grad_norm, moved = engine.measured_step(limit)
    else:
        unknown = torch.full((), math.nan, dtype=torch.float64, device=engine.device)
        grad_norm, moved = engine.step(limit), unknown
    params = engine.master_params()
    square = square_sum([master for _, master in params], engine.device)
    apart = run.ema.square_distance(params, engine.device) if measured else moved
    return grad_norm, square, moved, apart


def _count_bad(run: Run, share: Share) -> None:
    """Each clip once over all epochs (collective), which is not tried again in this attempt: one
    that hangs would cost all ranks its limit in every epoch. Raises TooManyBadSamples on all."""
    own = [clip.path for clip in share.bad], share.lasting
    for paths, lasting in run.engine.gather_objects(own):
        run.bad_clips.update(paths)
        run.loader.known_bad.update(lasting)
    count, limit = len(run.bad_clips), run.config.max_bad_samples
    if count > limit:
        error = TooManyBadSamples(
            f"{count} clips could not be read, more than max_bad_samples = {limit}",
            hint=f"{run.run_dir / 'bad_samples.jsonl'} lists them with their reasons; "
            f"make a manifest without them: {leave_out_bad(run.plan.manifest.source)}",
        )
        raise agreed(error)


def _next(run: Run, batches: Iterator[Batch], share: Share) -> Batch:
    """The next microbatch. When this rank has none, one without clips: the others wait in the
    step's collectives, and would wait there until their timeout (NCCL) if this rank just ended."""
    if share.failure is None:
        batch, share.failure = attempt(lambda: next(batches))
        if batch is not None:
            return batch
    return run.loader.stand_in()


def _end_without_data(run: Run, number: int, share: Share) -> NoReturn:
    """Some rank had no batch: all end here, with its reason and without this step (collective)."""
    failure = share.failure
    for clip in (*share.bad, *getattr(failure, "bad", ())):
        run.journal.bad_sample(number, run.engine.rank, *clip)
    run.engine.raise_any(failure, f"no batch for step {number}: ")
    raise AssertionError("no rank failed")


def _microbatch(run: Run, batch: Batch, share: Share, left: int) -> None:
    """Forward and backward pass; `left` more of them make the step."""
    engine, clock, number = run.engine, run.clock, run.step + 1
    with clock.phase("encode", number):
        run.drawing.seed_for_encoding(batch.microbatch)
        z_BCTHW, conditions = encode(run.parts.vae, run.parts.text, engine.device, batch)
        given = run.drawing.take(batch.microbatch, z_BCTHW, conditions)
    each, clips = run.config.accumulation_steps, len(z_BCTHW)
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    found: list[Tensor] = []
    chunks = _chunks(run, z_BCTHW, conditions, given)
    for place, (z, of_clips, drawn) in enumerate(chunks, 1):
        is_whole = place == len(chunks)
        with engine.passing(is_last=is_whole and not left):
            with clock.phase("forward", number):
                losses = run.parts.flow.training_losses(run.model, z, of_clips, **drawn._asdict())
                loss = losses.mean() / (each * clips / len(z))
            if place == 1:
                _draw_ahead(run)
            with clock.phase("backward", number):
                if is_whole:
                    engine.backward(loss, is_last=not left)
                else:
                    engine.backward_here(loss)
        found.append(losses.detach())
        total = total + loss.detach().double()
    losses = torch.cat(found)
    figures = share.figures
    share.losses.append(total)
    share.by_time = share.by_time + by_time(losses, given.t, run.parts.flow.num_timesteps)
    figures.samples += len(z_BCTHW)
    count, _, frames, height, width = z_BCTHW.shape
    patches = zip((frames, height, width), run.parts.model.config.patch_size, strict=True)
    figures.tokens += count * math.prod(-(-size // patch) for size, patch in patches)
    # three times the forward pass: what is recomputed counts once, as in every published MFU
    text_tokens, config = conditions["y"].shape[2], run.parts.model.config
    figures.flops += 3.0 * forward_flops(config, count, frames, height, width, text_tokens)
    share.buckets[batch.bucket] = None
    share.bad += batch.bad
    share.lasting |= batch.failures.lasting
    figures.decoder_bytes = max(figures.decoder_bytes, batch.decoder_bytes)


def _chunks(
    run: Run, z_BCTHW: Tensor, conditions: Mapping[str, Any], given: Given
) -> list[tuple[Tensor, Mapping[str, Any], Given]]:
    """A microbatch in the parts that fit through the model with nothing, or less, recomputed."""
    count, _, frames, height, width = z_BCTHW.shape
    spans = run.parts.model.grad_checkpoint.spans(count, (frames, height, width))
    if len(spans) == 1:
        return [(z_BCTHW, conditions, given)]
    return [
        (z_BCTHW[span], {name: value[span] for name, value in conditions.items()}, given.of(span))
        for span in spans
    ]


def _draw_ahead(run: Run) -> None:
    """For the next microbatch, while a GPU works on what this one has launched."""
    if (coming := run.loader.coming()) is not None:
        place, bucket = coming
        vae, size = run.parts.vae, (bucket.frames, bucket.height, bucket.width)
        shape = (bucket.batch_size, vae.out_channels, *vae.latent_size(size))
        run.drawing.ahead(place, shape)


def _memory(engine: Engine) -> tuple[float, float]:
    """Peaks of what is allocated and of what torch has reserved for it; on a CPU resident and 0."""
    if engine.device.type == "cuda":
        found = torch.cuda.memory_stats(engine.device)
        return found["allocated_bytes.all.peak"], found["reserved_bytes.all.peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, 0.0


def report(run: Run, done: Iterable[Saved]) -> None:
    for saved in done:
        path, seconds, stall_s = saved.path, saved.seconds, saved.stall_s
        waited = f"training waited {units.duration(min(stall_s, seconds))} for it"
        text = f"{path.name} saved in {units.duration(seconds)}, {waited}"
        data = {"path": str(path), "seconds": seconds, "stall_s": stall_s}
        run.journal.event("checkpoint", text, step=saved.step, **data)
        for note in saved.notes:
            run.journal.event("note", note, step=saved.step)
