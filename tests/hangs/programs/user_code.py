"""What a user brings to any framework: a dataset, a model, a report after each step.

DATA is a folder of this rank's node: `clip.bin` is what the dataset reads; while `busy` exists, the report
waits for it; once `enough` exists, the rank leaves its loop. OUT is where rank 0 saves.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

DATA, OUT = Path(os.environ["DATA"]), Path(os.environ["OUT"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WORKERS = int(os.environ["WORKERS"])
LOADER = {"num_workers": WORKERS, "batch_size": 2}
if WORKERS:
    LOADER |= {"prefetch_factor": 1, "persistent_workers": bool(os.environ.get("PERSISTENT"))}
SAVE_EVERY = 5
torch.set_num_threads(1)


class Clips(Dataset):
    def __len__(self) -> int:
        return 60 if os.environ.get("PERSISTENT") else 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        values = self._read_clip(DATA / "clip.bin")
        return {"x": values, "labels": values[:1]}

    def _read_clip(self, path: Path) -> torch.Tensor:
        with path.open("rb") as file:
            return torch.tensor(list((file.read(8) + bytes(8))[:8]), dtype=torch.float32)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


def report(step: int) -> None:
    print(f"step {step}", flush=True)
    while (DATA / "busy").exists():
        time.sleep(0.2)


def has_enough() -> bool:
    return (DATA / "enough").exists()


def pretend_gpu() -> None:
    """What pin_memory=True asks of a device, so that it starts its thread here, too."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda index: None
    torch.Tensor.pin_memory = lambda self, device=None: self


if os.environ.get("PIN"):
    LOADER["pin_memory"] = True
    pretend_gpu()
