"""The numbers of STDiT3. Without torch: reading a config asks for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class STDiT3Config:
    """Upstream's fields with upstream's defaults; the defaults of the sizes are XL/2's."""

    input_sq_size: int = 512  # pixel side of the square the positions were trained on
    in_channels: int = 4
    patch_size: tuple[int, int, int] = (1, 2, 2)
    hidden_size: int = 1152
    depth: int = 28  # pairs of a spatial and a temporal block
    num_heads: int = 16
    mlp_ratio: float = 4.0
    class_dropout_prob: float = 0.1  # captions replaced by the null text in training
    pred_sigma: bool = True  # twice the channels; rectified flow reads the first half
    drop_path: float = 0.0
    caption_channels: int = 4096
    model_max_length: int = 300
    qk_norm: bool = True
    only_train_temporal: bool = False
    freeze_y_embedder: bool = False
    skip_y_embedder: bool = False  # text comes projected and packed, from a feature cache
    # Upstream's switches for optional CUDA builds. There is one attention path here, so they
    # change nothing; they stand here because published configs carry them.
    enable_flash_attn: bool = False
    enable_layernorm_kernel: bool = False
    enable_sequence_parallelism: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", tuple(self.patch_size))
        if len(self.patch_size) != 3:
            raise ValueError(f"patch_size {self.patch_size} must be (frames, height, width)")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}"
            )
        if self.hidden_size % 4 or (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 4 and its "
                f"{self.num_heads} heads of even width"
            )
        if self.enable_sequence_parallelism:
            raise ValueError(
                "sequence parallelism is not built: set enable_sequence_parallelism=False"
            )

    @property
    def out_channels(self) -> int:
        return 2 * self.in_channels if self.pred_sigma else self.in_channels


# Published sizes by upstream's registry names.
PRESETS: dict[str, dict[str, int]] = {
    "STDiT3": {},
    "STDiT3-XL/2": {"depth": 28, "hidden_size": 1152, "num_heads": 16},
    "STDiT3-3B/2": {"depth": 28, "hidden_size": 1872, "num_heads": 26},
}
