"""A small run as training leaves it: config, text encoder, checkpoint with model and EMA."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from trainer.components import build_parts, make_tiny_text_encoder
from trainer.config import load as configuration

CONFIG = """
model = dict(type="STDiT3", hidden_size=32, depth=1, num_heads=2, patch_size=(4, 4, 4), input_sq_size=16)
vae = dict(type="identity", channels=1)
text_encoder = dict(type="tiny_t5", model_max_length=6, d_model=16, num_layers=1)
scheduler = dict(type="rflow", num_sampling_steps=2, cfg_scale=2.0)
dtype = "fp32"
sample = dict(num_frames=8, image_size=(16, 16), fps=8.0, batch_size=2)
"""
PROMPTS = ("digit one", "digit two", "digit one")


def make_run(run_dir: Path) -> tuple[Path, Path]:
    """The config file and the checkpoint inside `run_dir`."""
    file = run_dir / "small.py"
    file.write_text(CONFIG)
    config = configuration.load(file)
    make_tiny_text_encoder(config, run_dir, PROMPTS)
    torch.manual_seed(0)
    model = build_parts(config, run_dir).model
    for name, value in model.named_parameters():  # fresh temporal blocks do nothing
        if name.startswith("temporal_blocks") and name.endswith(("proj.weight", "fc2.weight")):
            torch.nn.init.xavier_uniform_(value)
    checkpoint = run_dir / "epoch0-global_step7"
    for folder, scale in (("model", 1.0), ("ema", 0.5)):
        (checkpoint / folder).mkdir(parents=True)
        state = {name: value * scale for name, value in model.state_dict().items()}
        if folder == "ema":  # as in training: only what has a gradient
            trained = {name for name, p in model.named_parameters() if p.requires_grad}
            state = {name: value for name, value in state.items() if name in trained}
        save_file(state, checkpoint / folder / "model.safetensors")
    (checkpoint / "manifest.json").write_text('{"files": {}}')
    return file, checkpoint
