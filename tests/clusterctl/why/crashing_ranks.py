"""Real gloo ranks of which one crashes in a way that is asked for; their logs are in FOLDER/N.log.

python -m tests.clusterctl.why.crashing_ranks FOLDER SCENARIO [--ranks N]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

WAIT_S = 120.0
SCENARIOS = {
    # name: (class of the first cause, its ranks)
    "exception": ("worker-exception", (1,)),
    "killed": ("unknown", (2,)),
    "out-of-memory": ("cuda-oom", (0,)),
    "disk-full": ("disk-full", (1,)),
    "worker-died": ("worker-died", (2,)),
    "import": ("environment", (0, 1, 2)),
    "missing-file": ("missing-file", (2,)),
    "segfault": ("signal-11", (1,)),
    "cleaning-up": ("worker-exception", (0,)),
    "survived": ("", ()),
    "well": ("", ()),
}
PROGRAM = """\
import faulthandler, os, signal, sys, time
scenario, rank = sys.argv[1], int(os.environ["RANK"])
if scenario == "import":
    import flash_attn_of_another_node
import torch
import torch.distributed as dist


class Clips(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4)


def crash():
    if scenario == "exception" and rank == 1:
        raise ValueError("caption of clip 1,204 has no words")
    if scenario == "killed" and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if scenario == "out-of-memory" and rank == 0:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.06 GiB is free.")
    if scenario == "disk-full" and rank == 1:
        with open("/dev/full", "wb") as file:
            file.write(bytes(1 << 20))
    if scenario == "worker-died" and rank == 2:
        list(torch.utils.data.DataLoader(Clips(), num_workers=1))
    if scenario == "missing-file" and rank == 2:
        open("/data/videos/0007.mp4", "rb")
    if scenario == "segfault" and rank == 1:
        import ctypes
        faulthandler.enable()
        ctypes.string_at(0)


def train():
    value = torch.ones(1 << 16)
    for step in range(6):
        print(f"step {step}/6  loss {1 / (step + 1):.4f}", flush=True)
        if scenario == "survived" and step == 2:
            try:
                raise OSError(5, "Input/output error", "clips/0042.mp4")
            except OSError:
                import traceback
                traceback.print_exc()
                print("clip 42 is replaced by clip 43", flush=True)
        if step == 3:
            crash()
        dist.all_reduce(value)


dist.init_process_group("gloo")
if scenario == "cleaning-up":
    try:
        train()
        if rank == 0:
            raise KeyError("ema_decay")
        dist.barrier()
    finally:
        if rank == 0:
            time.sleep(0.2)
            raise ConnectionResetError("[rank 0] Connection reset by peer while the store was closed")
else:
    train()
dist.destroy_process_group()
"""


def run(folder: Path, scenario: str, ranks: int = 3) -> dict[int, int]:
    """Start the ranks and wait; returns their exit codes."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "train.py"
    program.write_text(PROGRAM)
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}  # fmt: skip
    started = {}
    for rank in range(ranks):
        with (folder / f"{rank}.log").open("wb") as log:
            env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [sys.executable, str(program), scenario]
            started[rank] = subprocess.Popen(words, stdout=log, stderr=log, env=env)
    try:
        return {rank: one.wait(WAIT_S) for rank, one in started.items()}
    finally:
        for one in started.values():
            one.kill()
            one.wait()
        program.unlink()


def shorten(folder: Path) -> None:
    """Paths of this machine out of the logs, so that they can be kept."""
    home = re.escape(str(folder.resolve()))
    for path in folder.glob("*.log"):
        text = re.sub(home, "/job", path.read_text())
        text = re.sub(r"/[\w./-]+/site-packages/", "/venv/lib/python3.11/site-packages/", text)
        path.write_text(
            re.sub(r'"/[\w./-]*/lib/(?=python3[\d.]*/\w)(?!.*site-packages)', '"/usr/lib/', text)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--ranks", type=int, default=3)
    given = parser.parse_args()
    print(run(given.folder, given.scenario, given.ranks))
    shorten(given.folder)


if __name__ == "__main__":
    main()
