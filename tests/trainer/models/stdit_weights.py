"""Small STDiT3 models and the files that other programs would have written of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainer.models.stdit import STDiT3, build_stdit

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "depth": 2,
    "num_heads": 2,
    "caption_channels": 16,
    "model_max_length": 6,
}


def small(seed: int = 0, **options: Any) -> STDiT3:
    torch.manual_seed(seed)
    return build_stdit("STDiT3", **{**SMALL, **options}).eval()


def noisy(seed: int = 1, **options: Any) -> STDiT3:
    """As after some training: no tensor is as it was made."""
    model = small(seed, **options)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(0.05 * torch.randn(tensor.shape))
    return model


def pixart(seed: int = 2, rows: int = 6) -> dict[str, Tensor]:
    """An image model's tensors under PixArt's names: 4-d patches, `blocks`, stored positions."""
    found = {}
    for name, tensor in noisy(seed, model_max_length=rows).state_dict().items():
        if name.startswith(("temporal_blocks", "fps_embedder", "rope")) or "_norm" in name:
            continue
        found[name.replace("spatial_blocks", "blocks")] = tensor.clone()
    found["x_embedder.proj.weight"] = found["x_embedder.proj.weight"][:, :, 0].clone()
    found["pos_embed"] = torch.zeros(1, 64, 32)
    return found


def inputs(frames: int = 3, batch: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {
        "x_BCTHW": torch.randn(batch, 4, frames, 6, 4, generator=generator),
        "timestep_B": torch.tensor([300.0, 700.0])[:batch],
        "y": torch.randn(batch, 1, 6, 16, generator=generator),
        "mask": torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6])[:batch],
        "fps": torch.full((batch,), 24.0),
        "height": torch.full((batch,), 48.0),
        "width": torch.full((batch,), 32.0),
    }


def write_shards(folder: Path, tensors: dict[str, Tensor], kind: str, name: str) -> None:
    """Two shards and an index, as Hugging Face (.safetensors) and ColossalAI (.bin) write them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    table = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"{name}-{number:05d}.{kind}"
        shard = {key: tensors[key].contiguous() for key in part}
        if kind == "safetensors":
            save_file(shard, folder / file)
        else:
            torch.save(shard, folder / file)
        table |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / f"{name}.{kind}.index.json").write_text(json.dumps(index))


def write_upstream_checkpoint(folder: Path, model: dict[str, Tensor], ema: dict[str, Tensor]) -> Path:  # fmt: skip
    """epoch4-global_step2210 as Open-Sora 1.2 leaves it."""
    write_shards(folder / "model", model, "bin", "pytorch_model")
    torch.save(ema, folder / "ema.pt")
    (folder / "optimizer").mkdir()
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer" / "pytorch_optim_group.bin")
    (folder / "running_states.json").write_text('{"epoch": 4, "step": 9, "global_step": 2210}')
    torch.save({"last_epoch": 2210}, folder / "lr_scheduler")
    return folder
