"""What can go wrong inside of a rank, as context managers: a run of `ranks.py` names one with `harm=NAME`.

Ranks of a test are real processes, so the harm is done in them, to one rank unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainer import build_run as assemble
from trainer import loop, step
from trainer.checkpoint import files as checkpoint
from trainer.data.loader import loader
from trainer.data.manifest.manifest import ManifestError
from trainer.diffusion.rectified_flow import RectifiedFlow
from trainer.guards import spikes
from trainer.optim.ema import EMA
from trainer.slow_ranks import judge


def is_rank(number: int) -> bool:
    return os.environ["RANK"] == str(number)


@contextlib.contextmanager
def _at_call(owner: Any, name: str, number: int, act: Callable[..., Any]) -> Iterator[None]:
    """`act` gets the result of call `number` (first is 1) and gives another."""
    plain, calls = getattr(owner, name), [0]

    def changed(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        found = plain(*args, **options)
        return act(found) if calls[0] == number else found

    with mock.patch.object(owner, name, changed):
        yield


def _infinite(losses: torch.Tensor) -> torch.Tensor:
    losses.register_hook(lambda gradient: gradient * torch.inf)
    return losses


@contextlib.contextmanager
def infinite_gradient() -> Iterator[None]:
    """In step 4 of rank 1; its loss is finite."""
    act = _infinite if is_rank(1) else lambda losses: losses
    with _at_call(RectifiedFlow, "training_losses", 4, act):
        yield


@contextlib.contextmanager
def loss_that_is_no_number() -> Iterator[None]:
    """In step 4 of rank 1."""
    act = (lambda losses: losses * torch.nan) if is_rank(1) else (lambda losses: losses)
    with _at_call(RectifiedFlow, "training_losses", 4, act):
        yield


@contextlib.contextmanager
def infinite_gradients() -> Iterator[None]:
    """In each step of rank 1 from the third one on."""
    plain, calls = RectifiedFlow.training_losses, [0]

    def changed(*args: Any, **options: Any) -> torch.Tensor:
        calls[0] += 1
        found = plain(*args, **options)
        return _infinite(found) if calls[0] > 2 and is_rank(1) else found

    with mock.patch.object(RectifiedFlow, "training_losses", changed):
        yield


@contextlib.contextmanager
def _absurd_gradient(call: int) -> Iterator[None]:
    act = (lambda losses: losses * 1e4) if is_rank(1) else (lambda losses: losses)
    with _at_call(RectifiedFlow, "training_losses", call, act):
        yield


def absurd_gradient_in_step_55() -> Any:
    """Of rank 1: a bad batch, with 10,000 times its loss."""
    return _absurd_gradient(55)


def absurd_gradient_in_step_15() -> Any:
    """The same in a run that was resumed from step 40."""
    return _absurd_gradient(15)


@contextlib.contextmanager
def average_that_is_no_number() -> Iterator[None]:
    """On rank 1 after step 3; its weights are finite."""

    def act(_: None) -> None:
        (average,) = averages
        next(iter(average.state_dict().values())).view(-1)[:1] = torch.nan

    averages: list[EMA] = []
    plain = EMA.__init__

    def remember(self: EMA, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        averages.append(self)

    with (
        mock.patch.object(EMA, "__init__", remember),
        _at_call(EMA, "update", 3, act if is_rank(1) else lambda _: None),
    ):
        yield


@contextlib.contextmanager
def stopped_with_a_bad_average() -> Iterator[None]:
    """As above, and both ranks are asked to stop in step 4."""

    def act(losses: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return losses

    with average_that_is_no_number(), _at_call(RectifiedFlow, "training_losses", 4, act):
        yield


@contextlib.contextmanager
def _bad_data(first: int, end: float, times: float) -> Iterator[None]:
    """Microbatches from `first` to before `end`, of 24 in an epoch, have so many times their loss."""
    passing, losses, factor = step._microbatch, RectifiedFlow.training_losses, [1.0]

    def microbatch(run: Any, batch: Any, *more: Any) -> None:
        epoch, index = batch.microbatch
        factor[0] = times if first <= 24 * epoch + index < end else 1.0
        passing(run, batch, *more)

    def training_losses(*args: Any, **options: Any) -> torch.Tensor:
        return losses(*args, **options) * factor[0]

    with (
        mock.patch.object(step, "_microbatch", microbatch),
        mock.patch.object(RectifiedFlow, "training_losses", training_losses),
    ):
        yield


@contextlib.contextmanager
def bad_data_and_short_windows() -> Iterator[None]:
    """Of steps 31 to 40 of two ranks; 10 steps that stay high are a spike, after 20 others."""
    windows = {"WINDOW": 10, "EVERY": 5, "LEAST": 10, "_LEAST_BEFORE": 20}
    with mock.patch.multiple(spikes, **windows), _bad_data(60, 80, 100.0):
        yield


def bad_data() -> Any:
    """Of steps 121 to 150 of two ranks."""
    return _bad_data(240, 300, 5.0)


def bad_data_to_the_end() -> Any:
    return _bad_data(240, math.inf, 5.0)


@contextlib.contextmanager
def sigterm_in_last_step() -> Iterator[None]:
    """Of 4."""

    def act(losses: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return losses

    with _at_call(RectifiedFlow, "training_losses", 4, act):
        yield


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written to the disk at $HARM_DISK in steps 2 to 13."""
    plain, room = loop.step, Path(os.environ["HARM_DISK"]) / "filler"

    def step_on_a_full_disk(run: loop.Run, batches: Any) -> bool:
        if is_rank(0) and run.step == 1:
            with contextlib.suppress(OSError), room.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        if is_rank(0) and run.step == 13:
            room.unlink()
        return plain(run, batches)

    with mock.patch.object(loop, "step", step_on_a_full_disk):
        yield


@contextlib.contextmanager
def first_save_fails() -> Iterator[None]:
    """Behind the steps, when rank 0 writes the averaged weights."""
    plain, calls = checkpoint.write_weights, [0]

    def writes(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(5, "Input/output error", "/outputs/model.safetensors")
        return plain(*args)

    with mock.patch.object(checkpoint, "write_weights", writes):
        yield


@contextlib.contextmanager
def _no_task(error: Exception) -> Iterator[None]:
    """From the sixth task of rank 1 on."""
    plain, calls = loader.make_task, [0]

    def failing(*args: Any) -> Any:
        calls[0] += 1
        if is_rank(1) and calls[0] > 5:
            raise error
        return plain(*args)

    with mock.patch.object(loader, "make_task", failing):
        yield


def texts_gone() -> Any:
    return _no_task(ManifestError("the shards of captions are gone"))


def texts_io_error() -> Any:
    return _no_task(OSError(5, "Input/output error", "/data/captions.bin"))


def texts_no_memory() -> Any:
    return _no_task(MemoryError())


@contextlib.contextmanager
def _fails(owner: Any, name: str, error: Exception) -> Iterator[None]:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    with mock.patch.object(owner, name, failing) if is_rank(1) else contextlib.nullcontext():
        yield


def parts_missing() -> Any:
    return _fails(assemble, "build_parts", FileNotFoundError(2, "No such file", "/models/vae"))


def average_missing() -> Any:
    return _fails(assemble, "read_weights", OSError(5, "Input/output error", "/run/ema"))


def checkpoint_missing() -> Any:
    return _fails(assemble, "read_checkpoint", MemoryError("no room for the weights"))


@contextlib.contextmanager
def slow_forward_and_slow_loader() -> Iterator[None]:
    """Rank 1 takes 0.15 s longer in every forward pass, rank 2 as much longer for a batch. Blocks
    of 2 steps in place of 5 judge after 42 steps."""

    def late(owner: Any, name: str, number: int) -> Any:
        plain = getattr(owner, name)

        def slower(*args: Any, **options: Any) -> Any:
            time.sleep(0.15 if is_rank(number) else 0.0)
            return plain(*args, **options)

        return mock.patch.object(owner, name, slower)

    with (
        late(RectifiedFlow, "training_losses", 1),
        late(loader.Worker, "take", 2),
        mock.patch.object(judge, "BLOCK", 2),
    ):
        yield
