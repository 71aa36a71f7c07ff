"""Joining the other ranks: which rank this is, one sentence for what goes wrong, a limited wait."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from trainer.errors import ConfigError, EngineError, TrainerError
from trainer.runlog import units
from trainer.runlog.output import report_error

R = TypeVar("R", bound="Rank")
MORE_S = 30.0  # beyond the limit that torch is given: where it notices itself it says more


@dataclass
class Rank:
    """Which process of how many this is."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    on_host: int = 1  # processes on this machine

    @classmethod
    def from_environment(cls: type[R], *needed: str) -> R:
        """From the variables of torchrun and our launcher, the `needed` ones among them; one
        process without any. Raises ConfigError."""
        given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
        if not given:
            return cls()
        missing = [name for name in ("RANK", "WORLD_SIZE", *needed) if name not in os.environ]
        if missing:
            text = f"{given[0]} is set but not {', '.join(missing)}"
            raise ConfigError(f"{text}; start with torchrun")
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        local, on_host = (os.environ.get(n) for n in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        try:
            found = cls(int(rank), int(world), int(local or "0"), int(on_host or world))
        except ValueError:
            text = f"RANK is {rank!r} but WORLD_SIZE is {world!r}"
            raise ConfigError(f"{text}; start with torchrun") from None
        if not 0 <= found.rank < found.world:
            raise ConfigError(f"RANK {found.rank} is not below WORLD_SIZE {found.world}")
        return found


def rank_of_run() -> Rank:
    """This rank; without a launcher this process is made a run of one rank."""
    if "RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return Rank.from_environment("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


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
    silent = units.duration(timeout_s + MORE_S)
    silence = EngineError(
        f"{who}: the program at that port has not answered for {silent}",
        hint="another program or an older run has that port: end it, or take another port",
    )
    try:
        with ends_after(timeout_s + MORE_S, silence):
            yield
    except (RuntimeError, ValueError) as error:
        hint = "is the first node's name resolved and its port open on every node?"
        raise EngineError(f"{who}: {error}", hint=hint) from error
