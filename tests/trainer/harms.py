"""What can go wrong inside of a rank, as context managers: a run of `ranks.py` names one with `harm=NAME`.

Ranks of a test are real processes, so the harm is done in them, to one rank unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainer import build_run as assemble
from trainer import loop
from trainer.data.loader import loader
from trainer.data.manifest.manifest import ManifestError
from trainer.diffusion.rectified_flow import RectifiedFlow


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

    def step(run: loop.Run, batches: Any) -> bool:
        if is_rank(0) and run.step == 1:
            with contextlib.suppress(OSError), room.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        if is_rank(0) and run.step == 13:
            room.unlink()
        return plain(run, batches)

    with mock.patch.object(loop, "step", step):
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
