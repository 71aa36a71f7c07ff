"""A small real trainer: gloo ranks, torch's DataLoader with workers, heartbeats; does wrong on command.

`gloo_trainer.py FOLDER`: each step all ranks read the word in FOLDER/order, agreed by a broadcast:
`go`, or `FAULT RANK`. A fault lasts until FOLDER/release is there, where it can be ended at all.
Under a launcher rank 0 writes a record of each step.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from trainer.runlog.telemetry import Heartbeat, StepRecord, Writer

FOLDER = Path(sys.argv[1])
WORKERS = int(os.environ.get("WORKERS", "2"))


def released() -> bool:
    return (FOLDER / "release").exists()


class Clips(Dataset):
    """Blocks in `_read_from_stream` when this rank's fault says so."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self._read_from_stream(index)
        return torch.ones(4)

    def _read_from_stream(self, index: int) -> None:
        if (FOLDER / f"block-{os.environ['RANK']}").exists():
            with (FOLDER / "fifo").open("rb") as file:  # waits until the test opens it, too
                file.read(1)
            return
        slow = FOLDER / f"slow-{os.environ['RANK']}"
        if slow.exists():
            (FOLDER / "slow-file").read_bytes()


def hold_gil() -> None:
    """A long call in C that never lets go of the interpreter."""
    fifo = str(FOLDER / "gil").encode()
    libc = ctypes.PyDLL(None)
    descriptor = libc.open(fifo, os.O_RDONLY)
    libc.read(descriptor, ctypes.create_string_buffer(1), 1)
    libc.close(descriptor)


def spin_for_ever() -> None:
    number = 0
    while number >= 0:
        number += 1
        if number % 1_000_000 == 0 and released():
            return


def save_checkpoint() -> None:
    while not released():
        time.sleep(0.01)


def step(beat: Heartbeat, number: int, data, fault: str) -> None:
    beat.beat("data", number)
    batch = next(data)
    beat.beat("forward", number)
    if fault == "gil":
        hold_gil()
    elif fault == "spin":
        spin_for_ever()
    elif fault == "checkpoint":
        beat.beat("checkpoint", number)
        save_checkpoint()
    total = batch.sum()
    beat.beat("backward", number)
    if fault == "extra-barrier":
        dist.barrier()
    if fault != "skip":
        dist.all_reduce(total)
    beat.beat("optimizer", number)
    time.sleep(0.005)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beat = Heartbeat.from_environment(rank)
    assert beat is not None
    run_dir = os.environ.get("CLUSTERCTL_RUN_DIR")
    writer = Writer(Path(run_dir)) if run_dir and rank == 0 else None
    data = iter(DataLoader(Clips(), batch_size=2, num_workers=WORKERS, prefetch_factor=1))
    number = 0
    while True:
        order = [(FOLDER / "order").read_text().strip() if rank == 0 else ""]
        dist.broadcast_object_list(order)
        fault, _, who = order[0].partition(" ")
        if fault == "end":
            return
        number += 1
        step(beat, number, data, fault if who == str(rank) else "")
        if writer is not None:
            writer.write(StepRecord(number, 10**6, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01))
        if number == 3:
            (FOLDER / f"up-{rank}").touch()


main()
