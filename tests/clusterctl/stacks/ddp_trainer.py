"""A standard DistributedDataParallel program over gloo: loader, forward, backward, optimizer, now and then a save.

`ddp_trainer.py FOLDER`: a fault begins with a file FOLDER/FAULT-RANK and ends when the test lets go of FOLDER/held. It
sits only where a user's own code does: in the dataset, below torch.save, in a hook. Ranks agree on nothing,
no heartbeats are written. PIN=1 and DEVICE=1 give a rank the threads that it has with a GPU.
"""

import _thread
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.clusterctl.stacks.shared_lock import SharedLock

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
HELD = SharedLock(FOLDER / "held")  # by the test, until a fault is to end


def is_on(fault: str) -> bool:
    return (FOLDER / f"{fault}-{RANK}").exists()


class Clips(Dataset):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._read_from_stream()

    def _read_from_stream(self) -> torch.Tensor:
        if is_on("block"):
            with (FOLDER / "fifo").open("rb") as file:  # waits until the test opens it, too
                file.read(1)
        return torch.ones(8)


class SlowDisk:
    """A file whose first write takes until the test says so."""

    def write(self, data: object) -> int:
        while HELD.is_held():
            time.sleep(0.01)
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def reduce_behind_work(
    _state: object, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: the usual mean, with a fault behind work in a thread such as each GPU has."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    if not is_on("device"):
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    _thread.start_new_thread(HELD.spin, (None,))
    (task,) = set(tasks.iterdir()) - before
    (task / "comm").write_text("pt_autograd_0")
    mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def reduce() -> None:
        while task.exists():
            time.sleep(0.01)
        HELD.give()  # which the thread has taken at its end
        dist.all_reduce(buffer)
        mean.set_result(buffer)

    threading.Thread(target=reduce).start()
    return mean


def pretend_gpu() -> None:
    """What pin_memory=True asks of a device, so that it starts its thread here, too."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda index: None
    torch.Tensor.pin_memory = lambda self, device=None: self


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    if os.environ.get("DEVICE"):
        model.register_comm_hook(None, reduce_behind_work)
    if os.environ.get("PIN"):
        pretend_gpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Clips(),
        batch_size=2,
        num_workers=1,
        prefetch_factor=1,
        pin_memory=bool(os.environ.get("PIN")),
    )
    for step, batch in enumerate(loader):
        loss = model(batch).mean()
        computes = is_on("compute")
        if computes:
            loss.register_hook(HELD.spin)
        loss.backward()
        if computes:
            HELD.give()
        optimizer.step()
        optimizer.zero_grad()
        if is_on("save"):
            torch.save(model.state_dict(), SlowDisk())
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
