"""Joining the other ranks of a run: one sentence for what goes wrong, and a limit to the wait."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.errors import EngineError, TrainerError
from trainer.runlog.output import report_error

MORE_S = 30.0  # beyond the limit that torch is given: where it notices itself it says more


def ranks_of_environment() -> tuple[int, int, int]:
    """Rank, world, local rank; without a launcher this process is made a run of one rank."""
    if "RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    names = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in names if name not in os.environ]:
        raise EngineError(f"RANK is set but not {', '.join(missing)}; start with torchrun")
    rank, world, local_rank = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return rank, world, local_rank


@contextmanager
def ends_after(limit_s: float, error: TrainerError) -> Iterator[None]:
    """End the process after `limit_s` seconds: no exception reaches a thread that waits in C."""
    left = threading.Event()

    def watch() -> None:
        if not left.wait(limit_s):
            os._exit(report_error(error))

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield
    finally:
        left.set()


@contextmanager
def joining(timeout_s: float) -> Iterator[None]:
    """Raises EngineError, or ends the process: torch waits for a first answer without a limit."""
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    who = f"rank {rank} of {world} could not join the others at {where}"
    silence = EngineError(
        f"{who}: the program at that port has not answered for {timeout_s + MORE_S:.0f} s",
        hint="another program or an older run has that port: end it, or take another port",
    )
    try:
        with ends_after(timeout_s + MORE_S, silence):
            yield
    except (RuntimeError, ValueError) as error:
        hint = "is the first node's name resolved and its port open on every node?"
        raise EngineError(f"{who}: {error}", hint=hint) from error
