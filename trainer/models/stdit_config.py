"""The numbers of STDiT3. Without torch: reading a config asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainer.allowed_values import number, require_allowed
from trainer.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class STDiT3Config:
    """Upstream's fields with upstream's defaults; the defaults of the sizes are XL/2's."""

    input_sq_size: int = number(512, least=1)  # pixel side of the square of the positions
    in_channels: int = number(4, least=1)
    patch_size: tuple[int, int, int] = number((1, 2, 2), least=1)
    hidden_size: int = number(1152, least=1)
    depth: int = number(28, least=1)  # pairs of a spatial and a temporal block
    num_heads: int = number(16, least=1)
    mlp_ratio: float = number(4.0, above=0)
    # captions replaced by the null text in training
    class_dropout_prob: float = number(0.1, least=0, most=1)
    pred_sigma: bool = True  # twice the channels; rectified flow reads the first half
    drop_path: float = number(0.0, least=0, below=1)
    caption_channels: int = number(4096, least=1)
    model_max_length: int = number(300, least=1)
    qk_norm: bool = True
    only_train_temporal: bool = False
    freeze_y_embedder: bool = False
    skip_y_embedder: bool = False  # text comes projected and packed; no command makes it so
    # Upstream's switches for optional CUDA builds, in published configs; they change nothing.
    enable_flash_attn: bool = False
    enable_layernorm_kernel: bool = False
    enable_sequence_parallelism: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", tuple(self.patch_size))
        values = {name: getattr(self, name) for name in self.__slots__}
        require_allowed(type(self), values, lambda name: f"model.{name}")
        width, heads = f"model: hidden_size {self.hidden_size}", self.num_heads
        if len(self.patch_size) != 3:
            raise ConfigError(f"model: patch_size {self.patch_size} is not (frames, height, width)")
        if self.hidden_size % heads:
            raise ConfigError(f"{width} must be a multiple of num_heads {heads}")
        if self.hidden_size % 4 or (self.hidden_size // heads) % 2:
            raise ConfigError(
                f"{width} must be a multiple of 4 and its {heads} heads of even width"
            )
        if self.enable_sequence_parallelism:
            raise ConfigError("model: there is no sequence parallelism here")

    @property
    def out_channels(self) -> int:
        return 2 * self.in_channels if self.pred_sigma else self.in_channels


# Published sizes by upstream's registry names.
PRESETS: dict[str, dict[str, int]] = {
    "STDiT3": {},
    "STDiT3-XL/2": {"depth": 28, "hidden_size": 1152, "num_heads": 16},
    "STDiT3-3B/2": {"depth": 28, "hidden_size": 1872, "num_heads": 26},
}


def config_of(kind: str, options: Mapping[str, Any]) -> STDiT3Config:
    """Of a config's `model.type` and its other fields. Raises ConfigError."""
    known = [field.name for field in fields(STDiT3Config)]
    for name, names in [(kind, list(PRESETS)), *((key, known) for key in options)]:
        if name not in names:
            text = f"STDiT3 has no {name!r}; there is {', '.join(names)}"
            raise ConfigError(text, hint=nearest(name, names))
    return STDiT3Config(**{**PRESETS[kind], **options})
