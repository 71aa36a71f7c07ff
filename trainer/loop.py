"""The training loop: what one step is, and when a run saves and ends.

plan -> microbatch -> encode -> flow -> loss -> backward -> step -> schedule -> ema -> telemetry
"""

from __future__ import annotations

import hashlib
import math
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saved, Saver
from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.loader.dataset import Loader
from trainer.data.loader.features_loader import latents_of
from trainer.data.loader.microbatch import leave_out_bad
from trainer.data.plan import state as data_state
from trainer.data.plan.data_plan import DataPlan
from trainer.engine.agreement import agreed, attempt, common
from trainer.engine.base import Engine
from trainer.errors import CheckpointError, Diverged, TooManyBadSamples, TrainerError
from trainer.models.flops import forward_flops
from trainer.optim.ema import EMA
from trainer.optim.lr_schedules import Schedule
from trainer.runlog.journal import Journal
from trainer.runlog.telemetry import PHASES, Heartbeat, StepRecord


@dataclass
class Clock:
    """Seconds by phase of the step at hand; the heartbeat tells the node's agent which one it is."""

    heartbeat: Heartbeat | None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        if self.heartbeat is not None:
            self.heartbeat.beat(name, step)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return taken


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
        left = len(self.loader) // each + later * whole
        return (
            self.step + left
            if self.config.max_steps is None
            else min(self.config.max_steps, self.step + left)
        )

    @property
    def is_over(self) -> bool:
        if self.config.max_steps is not None and self.step >= self.config.max_steps:
            return True
        return self.loader.next_place(self.config.epochs) is None


def train(run: Run) -> bool:
    """Train to the end. False when it was asked to stop before; either way a checkpoint is left.

    Raises `Diverged`, `TooManyBadSamples`, `CheckpointError`, `LoaderError`, on all ranks alike.
    """
    try:
        stopped = _steps(run)
    except TrainerError as error:
        if error.on_all_ranks and not isinstance(error, CheckpointError):
            _finish_after(error, run)  # what was good before is still worth having
        raise
    _finish(run)
    return not stopped


def _steps(run: Run) -> bool:
    batches = _timed(run)
    stopped = False
    while not run.is_over and not stopped:
        stopped = _step(run, batches)
        every = run.config.ckpt_every
        ends = stopped or run.is_over
        if ends or (every and run.step % every == 0):
            save(run, background=not ends)
    save(
        run, background=False
    )  # when nothing was left to do: a run's directory holds where it stands
    return stopped and not run.is_over


def _timed(run: Run) -> Iterator[dict[str, Any]]:
    """Batches of this epoch and the next ones; waiting for them is the phase "data"."""
    while True:
        _tell_epoch(run)
        batches = iter(run.loader)
        while True:
            with run.clock.phase("data", run.step + 1):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch


def _tell_epoch(run: Run) -> None:
    """What the epoch trains on, and what of the data it leaves out and why."""
    cursor, plan = run.loader.cursor, run.plan.epoch(run.loader.cursor.epoch)
    if not len(plan):
        return
    left = plan.left_out(len(run.plan.manifest), run.engine.world * run.config.accumulation_steps)
    reasons = "".join(f"; {count:,} {why}" for why, count in left.items() if count)
    begins = "goes on" if cursor.consumed else "begins"
    clips = len(run.plan.manifest) - sum(left.values())
    text = f"epoch {cursor.epoch} {begins}: {clips:,} clips{reasons}"
    run.journal.event("epoch", text, step=run.step, clips=clips, left_out=left)


@dataclass
class Share:
    """What this rank did in a step."""

    loss: float = 0.0  # mean over its microbatches
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    buckets: dict[str, None] = field(default_factory=dict)  # in order, each once
    bad: list[tuple[int, str, str]] = field(default_factory=list)
    decoder_bytes: int = 0
    failure: TrainerError | None = None  # why this rank has no batch

    def numbers(self) -> dict[str, float]:
        """What of it all ranks are told."""
        return {
            "loss": self.loss,
            "samples": self.samples,
            "tokens": self.tokens,
            "flops": self.flops,
            "bad": len(self.bad),
            "decoder_bytes": self.decoder_bytes,
            "failed": self.failure is not None,
        }


def _step(run: Run, batches: Iterator[dict[str, Any]]) -> bool:
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
        masters = engine.masters()
        run.ema.update(masters)
        square = float(sum(norm.square() for norm in torch._foreach_norm([m for _, m in masters])))

    step_s = time.perf_counter() - start
    seconds = clock.take()
    own_s = step_s - (engine.waited_s - waited)
    mine = {
        **share.numbers(),
        **seconds,
        "grad_norm": grad_norm,
        "square": square,
        "step_s": step_s,
        "own_s": own_s,
        "memory": _memory(engine),
        "stop": run.stop_requested,
        "saver": run.saver.status,
    }
    # The one small collective of a step; it carries the agreements too.
    rows = engine.gather(map(float, mine.values()))
    told = dict(zip(mine, zip(*rows, strict=True), strict=True))
    if any(told["failed"]):
        _end_without_data(run, number, share)

    run.step = number
    run.samples += int(sum(told["samples"]))
    record = StepRecord(
        step=number,
        steps_total=run.steps_total,
        epoch=run.loader.cursor.epoch,
        samples=int(sum(told["samples"])),
        tokens=int(sum(told["tokens"])),
        flops=sum(told["flops"]),
        loss=sum(told["loss"]) / engine.world,
        grad_norm=grad_norm,
        lr=lr,
        step_s=max(told["step_s"]),
        seconds={name: sum(told[name]) / engine.world for name in PHASES},
        weight_norm=math.sqrt(sum(told["square"]) if engine.is_sharded else told["square"][0]),
        idle_share=1 - sum(told["own_s"]) / engine.world / max(told["own_s"]),
        slowest_rank=told["own_s"].index(max(told["own_s"])),
        bucket=", ".join(share.buckets),
        memory_bytes=int(max(told["memory"])),
        decoder_bytes=int(max(told["decoder_bytes"])) or None,
        world=engine.world,
        time_s=time.time(),
    )
    run.journal.step(record)
    for row, path, reason in share.bad:
        run.journal.bad_sample(number, engine.rank, row, path, reason)
    _tell(run, run.saver.advance(told["saver"]))
    _require_numbers(number, told)
    if any(told["bad"]):
        _count_bad(run, share)
    return any(told["stop"])


_NUMBERS = {
    "loss": "the loss of step {} is {}",
    "grad_norm": "the norm of the gradients of step {} is {}",
    "square": "the norm of the weights after step {} is {}",
}


def _require_numbers(number: int, told: Mapping[str, Sequence[float]]) -> None:
    """Raises `Diverged` on all ranks before anything that is no number can be saved."""
    for name, words in _NUMBERS.items():
        ranks = [rank for rank, value in enumerate(told[name]) if not math.isfinite(value)]
        if ranks:
            said = words.format(number, told[name][ranks[0]])
            raise agreed(
                Diverged(
                    f"{said} on rank {', '.join(map(str, ranks))}; all ranks stop, and nothing of this step is saved",
                    hint="resume from the newest checkpoint with a smaller lr or grad_clip",
                )
            )


def _count_bad(run: Run, share: Share) -> None:
    """Each clip once, however many epochs it is in; raises `TooManyBadSamples` on all ranks (collective)."""
    for paths in run.engine.gather_objects([path for _, path, _ in share.bad]):
        run.bad_clips.update(paths)
    if len(run.bad_clips) > run.config.max_bad_samples:
        raise agreed(
            TooManyBadSamples(
                f"{len(run.bad_clips)} clips could not be read, more than max_bad_samples = {run.config.max_bad_samples}",
                hint=f"{run.run_dir / 'bad_samples.jsonl'} lists them with their reasons; make a manifest without "
                f"them: {leave_out_bad(run.plan.manifest.source)}",
            )
        )


def _next(run: Run, batches: Iterator[dict[str, Any]], share: Share) -> dict[str, Any]:
    """The next microbatch. When this rank has none, one without clips: the others wait in the step's
    collectives, and would wait there until their time is over (NCCL) if this rank just ended."""
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
    error = common(run.engine.gather_objects(failure), f"no batch for step {number}: ")
    assert error is not None
    raise error


def _microbatch(run: Run, batch: dict[str, Any], share: Share, left: int) -> None:
    """Forward and backward pass; `left` more of them make the step."""
    engine, clock, number = run.engine, run.clock, run.step + 1
    # By microbatch, not by rank: no generator's state needs saving, and the noise of a clip stays
    # the same when the number of ranks changes.
    words = (run.config.seed, *batch["microbatch"])
    with clock.phase("encode", number):
        # The posterior's draw has a seed of its own: times and noise are the same whether a VAE runs
        # (and draws for each frame, too) or its posterior comes from a cache.
        torch.manual_seed(_seed(*words, 1))
        z_BCTHW, conditions = _encode(run, batch)
        torch.manual_seed(_seed(*words))
        mask_BT = run.parts.masks.draw(z_BCTHW.shape[0], z_BCTHW.shape[2])
        mask_BT = None if mask_BT is None else mask_BT.to(engine.device)
    with engine.passing(is_last=not left):
        with clock.phase("forward", number):
            losses = run.parts.flow.training_losses(run.model, z_BCTHW, conditions, mask=mask_BT)
            loss = losses.mean() / run.config.accumulation_steps
        with clock.phase("backward", number):
            engine.backward(loss, is_last=not left)
    share.loss += float(loss.detach())
    share.samples += len(z_BCTHW)
    count, _, frames, height, width = z_BCTHW.shape
    patches = zip((frames, height, width), run.parts.model.config.patch_size, strict=True)
    share.tokens += count * math.prod(-(-size // patch) for size, patch in patches)
    # three times the forward pass: what is recomputed counts once, as in every published MFU
    share.flops += 3.0 * forward_flops(
        run.parts.model.config, count, frames, height, width, conditions["y"].shape[2]
    )
    share.buckets[batch["bucket"]] = None
    share.bad += batch["bad"]
    share.decoder_bytes = max(share.decoder_bytes, batch.get("decoder_bytes", 0))


def _encode(run: Run, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    device = run.engine.device
    sizes = {name: batch[name].to(device) for name in ("fps", "height", "width", "num_frames")}
    if "latents" in batch:  # of a feature cache
        with torch.no_grad():
            z_BCTHW = latents_of(batch["latents"].to(device, non_blocking=True))
        y, mask = batch["y"].to(device, non_blocking=True), batch["mask"].to(device)
        return z_BCTHW, {"y": y, "mask": mask, **sizes}
    with torch.no_grad():
        video = batch["video"].to(device, non_blocking=True)
        if video.dtype == torch.uint8:  # else upstream's own pixels, -1 to 1 already
            video = video.float() / 127.5 - 1
        z_BCTHW = run.parts.vae.encode(video)
        y, mask = run.parts.text.encode(batch["text"])
    return z_BCTHW, {"y": y.to(device), "mask": mask.to(device), **sizes}


def _memory(engine: Engine) -> float:
    if engine.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(engine.device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _seed(*words: int) -> int:
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def save(run: Run, *, background: bool = True) -> None:
    """Begin a checkpoint of this moment, unless it is there already (collective)."""
    if run.saved_at == run.step:
        return
    engine = run.engine
    with run.clock.phase("checkpoint", run.step):
        began = time.perf_counter()
        state, weights = engine.state(), engine.weights_to_save()
        done = run.saver.save(
            checkpoint.Position(run.loader.cursor.epoch, run.step),
            state,
            weights,
            run.ema.state_dict(),
            _documents(run),
            background=background,
            waited_s=time.perf_counter() - began,
        )
    run.saved_at = run.step
    _tell(run, done)


def _documents(run: Run) -> Callable[[], dict[str, Any]]:
    """What a checkpoint holds beside tensors; the saver of rank 0 asks for it, on its thread.

    It costs a pass over the epoch so far, the first one over the whole manifest.
    """
    cursor, world, plan, schedule = run.loader.cursor, run.engine.world, run.plan, run.schedule
    now = {
        checkpoint.SCHEDULE: schedule.state_dict(),
        checkpoint.RUNNING: {
            "schema": 1,
            "epoch": cursor.epoch,
            "global_step": run.step,
            "samples": run.samples,
            "bad_samples": len(run.bad_clips),
            "bad_clips": sorted(run.bad_clips),
            "ema_updates": run.ema.updates,
            "world": world,
        },
    }
    return lambda: {
        **now,
        checkpoint.SAMPLER: data_state.take(plan, cursor, world),
        checkpoint.SEEN: data_state.seen(plan, cursor),
    }


def _finish(run: Run) -> None:
    """Wait for the checkpoint under way (collective)."""
    with run.clock.phase("checkpoint", run.step):
        done = run.saver.finish()
    _tell(run, done)


def _finish_after(error: TrainerError, run: Run) -> None:
    """As `_finish`, when the run ends with an error already: what is wrong with the save is said beside it."""
    try:
        _finish(run)
    except CheckpointError as later:
        error.args = (f"{error}\n{later}",)


def _tell(run: Run, done: Iterable[Saved]) -> None:
    for saved in done:
        text = (
            f"{saved.path.name} in {saved.seconds:.1f} s, {saved.stall_s:.2f} s of them waited for"
        )
        run.journal.event(
            "checkpoint",
            text,
            step=saved.step,
            path=str(saved.path),
            seconds=saved.seconds,
            stall_s=saved.stall_s,
        )
        for note in saved.notes:
            run.journal.event("note", note, step=saved.step)
