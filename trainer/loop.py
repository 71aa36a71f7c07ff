"""The training loop: what one step is, and when a run saves and ends.

plan -> microbatch -> encode -> flow -> loss -> backward -> step -> schedule -> ema -> telemetry
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from trainer import checkpoint
from trainer.config import Config, to_dict
from trainer.data import state as data_state
from trainer.data.dataset import Loader, LoaderError
from trainer.data.features_loader import latents_of
from trainer.data.microbatch import leave_out_bad
from trainer.data.plan import DataPlan
from trainer.ema import EMA
from trainer.engine.base import Engine
from trainer.errors import CheckpointError, Diverged, TooManyBadSamples, TrainerError
from trainer.models.flops import forward_flops
from trainer.parts import Parts
from trainer.saver import Saved, Saver
from trainer.schedules import Schedule
from trainer.telemetry import PHASES, Heartbeat, StepRecord, Writer
from trainer.tracking import Wandb


class Journal(Protocol):
    """What rank 0 tells people and files; nothing on the other ranks."""

    def step(self, record: StepRecord) -> None: ...

    def event(self, name: str, text: str, *, step: int | None = None, **data: Any) -> None: ...

    def bad_sample(self, step: int, rank: int, row: int, path: str, reason: str) -> None: ...

    def close(self) -> None: ...


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
    bad_samples: int = 0
    saved_at: int = -1
    stop_requested: bool = False

    @property
    def steps_total(self) -> int:
        """Where this run ends; exact for the epoch at hand, an estimate for later ones."""
        later = max(0, self.config.epochs - self.loader.cursor.epoch - 1)
        each = self.config.accumulation_steps
        whole = len(self.plan.epoch(self.loader.cursor.epoch)) // (self.engine.world * each)
        left = len(self.loader) // each + later * whole
        return self.step + left if self.config.max_steps is None else min(self.config.max_steps, self.step + left)  # fmt: skip

    @property
    def is_over(self) -> bool:
        if self.config.max_steps is not None and self.step >= self.config.max_steps:
            return True
        # After an epoch's last batch the cursor still stands in it: the next one begins when it is asked for.
        return self.loader.cursor.epoch + (len(self.loader) == 0) >= self.config.epochs


def train(run: Run) -> bool:
    """Train to the end. False when it was asked to stop before; either way a checkpoint is left.

    Raises `Diverged`, `TooManyBadSamples`, `CheckpointError`, `LoaderError`, on all ranks alike.
    """
    try:
        stopped = _steps(run)
    except TrainerError as error:
        if error.on_all_ranks and not isinstance(error, CheckpointError):
            _finish(run)  # what was good before is still worth having
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
    return stopped


def _timed(run: Run) -> Iterator[dict[str, Any]]:
    """Batches of this epoch and the next ones; waiting for them is the phase "data"."""
    while True:
        batches = iter(run.loader)
        while True:
            with run.clock.phase("data", run.step + 1):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
        run.journal.event("epoch", f"epoch {run.loader.cursor.epoch} begins", step=run.step)


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
    mine = [share.loss, step_s, own_s, share.samples, share.tokens, _memory(engine), float(run.stop_requested), len(share.bad), square, run.saver.status, *(seconds[name] for name in PHASES), share.flops, share.decoder_bytes, float(share.failure is not None)]  # fmt: skip
    every = engine.gather(mine)  # the one small collective of a step; it carries the agreements too
    columns = list(zip(*every, strict=True))
    if any(columns[-1]):
        _end_without_data(run, number, share)

    run.step = number
    run.samples += int(sum(columns[3]))
    run.bad_samples += int(sum(columns[7]))
    record = StepRecord(
        step=number,
        steps_total=run.steps_total,
        epoch=run.loader.cursor.epoch,
        samples=int(sum(columns[3])),
        tokens=int(sum(columns[4])),
        flops=sum(columns[-3]),
        loss=sum(columns[0]) / len(every),
        grad_norm=grad_norm,
        lr=lr,
        step_s=max(columns[1]),
        seconds={name: sum(columns[10 + i]) / len(every) for i, name in enumerate(PHASES)},
        weight_norm=math.sqrt(sum(columns[8]) if engine.is_sharded else columns[8][0]),
        idle_share=1 - sum(columns[2]) / len(every) / max(columns[2]),
        slowest_rank=columns[2].index(max(columns[2])),
        bucket=", ".join(share.buckets),
        memory_bytes=int(max(columns[5])),
        decoder_bytes=int(max(columns[-2])) or None,
        world=engine.world,
        time_s=time.time(),
    )
    run.journal.step(record)
    for row, path, reason in share.bad:
        run.journal.bad_sample(number, engine.rank, row, path, reason)
    _tell(run, run.saver.advance(columns[9]))
    if not math.isfinite(record.loss):
        ranks = [rank for rank, row in enumerate(every) if not math.isfinite(row[0])]
        raise _agreed(Diverged(
            f"the loss of step {number} is {record.loss} on rank {', '.join(map(str, ranks))}; all ranks stop",
            hint="resume from the newest checkpoint with a smaller lr or grad_clip",
        ))  # fmt: skip
    if run.bad_samples > run.config.max_bad_samples:
        raise _agreed(TooManyBadSamples(
            f"{run.bad_samples} clips could not be read, more than max_bad_samples = {run.config.max_bad_samples}",
            hint=f"{run.run_dir / 'bad_samples.jsonl'} lists them with their reasons; make a manifest without "
            f"them: {leave_out_bad(run.plan.manifest.source)}",
        ))  # fmt: skip
    return any(columns[6])


def _next(run: Run, batches: Iterator[dict[str, Any]], share: Share) -> dict[str, Any]:
    """The next microbatch. When this rank has none, one without clips: the others wait in the step's
    collectives, and would wait there until their time is over (NCCL) if this rank just ended."""
    if share.failure is None:
        try:
            return next(batches)
        except TrainerError as error:
            share.failure = error
    empty = run.loader.stand_in()
    if empty is None:
        raise share.failure
    return empty


def _end_without_data(run: Run, number: int, share: Share) -> NoReturn:
    """Some rank had no batch: all end here, with its reason and without this step (collective)."""
    failure = share.failure
    for row, path, reason in (*share.bad, *getattr(failure, "bad", ())):
        run.journal.bad_sample(number, run.engine.rank, row, path, reason)
    too_many = isinstance(failure, TooManyBadSamples)
    said = run.engine.gather_objects(failure and (str(failure), failure.hint, too_many))
    alike: dict[str, list[int]] = {}  # often all ranks have the same reason
    for rank, words in enumerate(said):
        if words:
            alike.setdefault(words[0].removeprefix(f"rank {rank}: "), []).append(rank)
    texts = []
    for text, ranks in alike.items():
        more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
        texts.append(f"rank {', '.join(map(str, ranks[:4]))}{more}: {text}")
    _, hint, too_many = next(words for words in said if words)
    kind: type[TrainerError] = TooManyBadSamples if too_many else LoaderError
    raise _agreed(kind(f"no batch for step {number}: " + "\n".join(texts), hint=hint)) from None


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


def _agreed(error: TrainerError) -> TrainerError:
    """Of a failure that all ranks see in the same gathered numbers."""
    error.on_all_ranks = True
    return error


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
            "bad_samples": run.bad_samples,
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


def _tell(run: Run, done: Iterable[Saved]) -> None:
    for saved in done:
        text = (
            f"{saved.path.name} in {saved.seconds:.1f} s, {saved.stall_s:.2f} s of them waited for"
        )
        run.journal.event(
            "checkpoint", text, step=saved.step, path=str(saved.path),
            seconds=saved.seconds, stall_s=saved.stall_s,
        )  # fmt: skip


class RankZeroJournal:
    """telemetry.jsonl, bad_samples.jsonl and a line every `log_every` steps."""

    def __init__(self, run_dir: Path, config: Config, rank: int) -> None:
        self._log_every = config.log_every
        self._writer = Writer(run_dir) if rank == 0 else None
        self._tracker: Wandb | None = None
        if rank == 0 and config.wandb != "off":
            self._tracker = Wandb(
                config.wandb,
                run_dir,
                config.wandb_project,
                config.exp_name or run_dir.name,
                to_dict(config),
                functools.partial(self.event, "tracking"),
            )
        self._bad = run_dir / "bad_samples.jsonl"

    def step(self, record: StepRecord) -> None:
        if self._writer is None:
            return
        self._writer.write(record)
        if self._tracker is not None:
            self._tracker.log(record)
        if record.step % self._log_every == 0 or record.step == 1:
            print(
                f"step {record.step}/{record.steps_total}  epoch {record.epoch}  loss {record.loss:.4f}  "
                f"grad {record.grad_norm:.3f}  lr {record.lr:.2e}  {record.step_s:.3f} s/step",
                flush=True,
            )

    def event(self, name: str, text: str, *, step: int | None = None, **data: Any) -> None:
        writer = self._writer  # the tracker tells from its own thread, perhaps after close
        if writer is not None:
            writer.event(name, text, step=step, **data)
            print(f"{name}: {text}", flush=True)

    def bad_sample(self, step: int, rank: int, row: int, path: str, reason: str) -> None:
        line = {"step": step, "rank": rank, "row": row, "path": path, "reason": reason}
        with self._bad.open("a") as file:  # one write of one short line: ranks do not mix
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
