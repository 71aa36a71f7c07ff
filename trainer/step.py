"""One optimizer step: forward, backward, update; what each rank tells the others about it."""

from __future__ import annotations

import hashlib
import math
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from trainer.checkpoint.async_saver import Saved, Saver
from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.loader.build_loader import latents_of
from trainer.data.loader.loader import Loader
from trainer.data.loader.microbatch import Batch, leave_out_bad
from trainer.data.plan.data_plan import DataPlan
from trainer.engine.agreement import agreed, attempt
from trainer.engine.base import Engine
from trainer.errors import Diverged, TooManyBadSamples, TrainerError
from trainer.journal import Journal
from trainer.models.flops import forward_flops
from trainer.models.vae.interface import to_signed
from trainer.optim.ema import EMA
from trainer.optim.lr_schedules import Schedule
from trainer.runlog.telemetry import PHASES, Clock, StepRecord


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
    saver: Saver
    run_dir: Path
    clock: Clock
    model: torch.nn.Module
    step: int = 0  # optimizer steps taken over the whole run
    samples: int = 0
    bad_clips: set[str] = field(default_factory=set)  # paths; on all ranks those of all ranks
    saved_at: int = -1
    stop_requested: bool = False

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


@dataclass(slots=True)
class StepFigures:
    """One rank's step in numbers, which all ranks exchange in one small collective."""

    loss: float = 0.0  # mean over its microbatches
    samples: float = 0
    tokens: float = 0
    flops: float = 0.0
    bad: float = 0  # clips that could not be read
    decoder_bytes: float = 0  # peak of its largest decoding process
    failed: float = False  # it has no batch
    data: float = 0.0  # seconds by phase, see telemetry.PHASES
    encode: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    checkpoint: float = 0.0
    grad_norm: float = 0.0
    square: float = 0.0  # sum of squares of the fp32 weights that it holds
    step_s: float = 0.0
    own_s: float = 0.0  # of them, not in gradient collectives
    memory_bytes: float = 0
    stop: float = False  # it got a signal
    saver: float = 0  # `Saver.status`


@dataclass
class Share:
    """What this rank did in a step: numbers for the others, and what it reports itself."""

    figures: StepFigures = field(default_factory=StepFigures)
    buckets: dict[str, None] = field(default_factory=dict)  # in order, each once
    bad: list[tuple[int, str, str]] = field(default_factory=list)
    failure: TrainerError | None = None  # why this rank has no batch


def step(run: Run, batches: Iterator[Batch]) -> bool:
    """One optimizer step; returns whether all ranks agreed to stop after it."""
    engine, clock, number = run.engine, run.clock, run.step + 1
    start = time.perf_counter() - clock.seconds["checkpoint"]  # what this step waited for
    waited, share, each = engine.waited_s, Share(), run.config.accumulation_steps
    for left in range(each - 1, -1, -1):
        _microbatch(run, _next(run, batches, share), share, left)
    if run.saver.is_copying:
        with clock.phase("checkpoint", number):
            run.saver.hold()
    with clock.phase("optimizer", number):
        lr = run.schedule.lr
        grad_norm = engine.step()
        run.schedule.step()
        masters = engine.master_params()
        run.ema.update(masters)
        norms = torch._foreach_norm([master for _, master in masters])
        square = float(sum(norm.square() for norm in norms))

    step_s = time.perf_counter() - start
    own = replace(
        share.figures,
        **clock.take(),
        bad=len(share.bad),
        failed=share.failure is not None,
        grad_norm=grad_norm,
        square=square,
        step_s=step_s,
        own_s=step_s - (engine.waited_s - waited),
        memory_bytes=_memory(engine),
        stop=run.stop_requested,
        saver=run.saver.status,
    )
    ranks = [StepFigures(*row) for row in engine.gather(map(float, astuple(own)))]
    if any(rank.failed for rank in ranks):
        _end_without_data(run, number, share)

    run.step = number
    samples = int(sum(rank.samples for rank in ranks))
    run.samples += samples
    squares, work_s = [rank.square for rank in ranks], [rank.own_s for rank in ranks]
    record = StepRecord(
        step=number,
        steps_total=run.steps_total,
        epoch=run.loader.cursor.epoch,
        samples=samples,
        tokens=int(sum(rank.tokens for rank in ranks)),
        flops=sum(rank.flops for rank in ranks),
        loss=sum(rank.loss for rank in ranks) / engine.world,
        grad_norm=grad_norm,
        lr=lr,
        step_s=max(rank.step_s for rank in ranks),
        seconds={p: sum(getattr(rank, p) for rank in ranks) / engine.world for p in PHASES},
        weight_norm=math.sqrt(sum(squares) if engine.is_sharded else squares[0]),
        idle_share=1 - sum(work_s) / engine.world / max(work_s),
        slowest_rank=work_s.index(max(work_s)),
        bucket=", ".join(share.buckets),
        memory_bytes=int(max(rank.memory_bytes for rank in ranks)),
        decoder_bytes=int(max(rank.decoder_bytes for rank in ranks)) or None,
        world=engine.world,
        time_s=time.time(),
    )
    run.journal.step(record)
    for row, path, reason in share.bad:
        run.journal.bad_sample(number, engine.rank, row, path, reason)
    report(run, run.saver.advance(rank.saver for rank in ranks))
    _require_numbers(number, ranks)
    if any(rank.bad for rank in ranks):
        _count_bad(run, share)
    return any(rank.stop for rank in ranks)


_NUMBERS = {
    "loss": "the loss of step {} is {}",
    "grad_norm": "the norm of the gradients of step {} is {}",
    "square": "the norm of the weights after step {} is {}",
}


def _require_numbers(number: int, ranks: Sequence[StepFigures]) -> None:
    """Raises `Diverged` on all ranks before anything that is not finite can be saved."""
    for name, template in _NUMBERS.items():
        values = [getattr(rank, name) for rank in ranks]
        bad = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            what = f"{template.format(number, values[bad[0]])} on rank {', '.join(map(str, bad))}"
            hint = "resume from the newest checkpoint with a smaller lr or grad_clip"
            raise agreed(Diverged(f"{what}; all ranks stop; this step is not saved", hint=hint))


def _count_bad(run: Run, share: Share) -> None:
    """Each clip once over all epochs (collective). Raises TooManyBadSamples on all ranks."""
    run.bad_clips.update(*run.engine.gather_objects([path for _, path, _ in share.bad]))
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
    for row, path, reason in (*share.bad, *getattr(failure, "bad", ())):
        run.journal.bad_sample(number, run.engine.rank, row, path, reason)
    run.engine.raise_any(failure, f"no batch for step {number}: ")
    raise AssertionError("no rank failed")


def _microbatch(run: Run, batch: Batch, share: Share, left: int) -> None:
    """Forward and backward pass; `left` more of them make the step."""
    engine, clock, number = run.engine, run.clock, run.step + 1
    # By microbatch, not by rank: no state to save, the same noise for any number of ranks.
    seeds = (run.config.seed, *batch.microbatch)
    with clock.phase("encode", number):
        # The posterior has its own seed: times and noise are the same with a feature cache.
        torch.manual_seed(_seed(*seeds, 1))
        z_BCTHW, conditions = _encode(run, batch)
        torch.manual_seed(_seed(*seeds))
        mask_BT = run.parts.masks.draw(z_BCTHW.shape[0], z_BCTHW.shape[2])
        mask_BT = None if mask_BT is None else mask_BT.to(engine.device)
    with engine.passing(is_last=not left):
        with clock.phase("forward", number):
            losses = run.parts.flow.training_losses(run.model, z_BCTHW, conditions, mask=mask_BT)
            loss = losses.mean() / run.config.accumulation_steps
        with clock.phase("backward", number):
            engine.backward(loss, is_last=not left)
    figures = share.figures
    figures.loss += float(loss.detach())
    figures.samples += len(z_BCTHW)
    count, _, frames, height, width = z_BCTHW.shape
    patches = zip((frames, height, width), run.parts.model.config.patch_size, strict=True)
    figures.tokens += count * math.prod(-(-size // patch) for size, patch in patches)
    # three times the forward pass: what is recomputed counts once, as in every published MFU
    text_tokens, config = conditions["y"].shape[2], run.parts.model.config
    figures.flops += 3.0 * forward_flops(config, count, frames, height, width, text_tokens)
    share.buckets[batch.bucket] = None
    share.bad += batch.bad
    figures.decoder_bytes = max(figures.decoder_bytes, batch.decoder_bytes)


def _encode(run: Run, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    conditions = {name: getattr(batch, name) for name in ("fps", "height", "width", "num_frames")}
    device = run.engine.device
    with torch.no_grad():
        if batch.latents is not None:  # of a feature cache
            z_BCTHW = latents_of(batch.latents.to(device, non_blocking=True))
            conditions |= {"y": batch.y, "mask": batch.mask}
        else:
            assert batch.video is not None
            video = to_signed(batch.video.to(device, non_blocking=True))
            z_BCTHW = run.parts.vae.encode(video)
            conditions["y"], conditions["mask"] = run.parts.text.encode(batch.text)
    return z_BCTHW, {
        name: value.to(device, non_blocking=True) for name, value in conditions.items()
    }


def _memory(engine: Engine) -> float:
    if engine.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(engine.device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _seed(*numbers: int) -> int:
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def report(run: Run, done: Iterable[Saved]) -> None:
    for saved in done:
        path, seconds, stall_s = saved.path, saved.seconds, saved.stall_s
        text = f"{path.name} in {seconds:.2f} s, {min(stall_s, seconds):.2f} s of them waited for"
        data = {"path": str(path), "seconds": seconds, "stall_s": stall_s}
        run.journal.event("checkpoint", text, step=saved.step, **data)
        for note in saved.notes:
            run.journal.event("note", note, step=saved.step)
