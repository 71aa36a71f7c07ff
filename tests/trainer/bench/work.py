"""What trials do in a child process, for tests of how they end. Imported there by name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

from trainer.bench.trial import Measured


def refuse(_progress: Any) -> Measured:
    raise ValueError("bucket of the wrong shape\nwith a second line")


def use_up(_progress: Any) -> Measured:
    raise MemoryError


def allocate(_progress: Any) -> Measured:
    import torch

    torch.empty(1 << 50, dtype=torch.uint8)
    raise AssertionError("a petabyte was given")


def be_killed(_progress: Any) -> Measured:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def leave(_progress: Any) -> Measured:
    os._exit(7)


def hang(progress: Any) -> Measured:
    progress(0, 1)
    threading.Event().wait()
    raise AssertionError


def be_killed_with_a_lock(progress: Any) -> None:
    held = multiprocessing.get_context("forkserver").Semaphore()
    be_killed(held)
