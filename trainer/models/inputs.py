"""What STDiT3 is given, checked by shape and dtype alone: nothing here waits for an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.errors import ModelInputError

if TYPE_CHECKING:
    from trainer.models.stdit_config import STDiT3Config

# B batch · C channels · T,H,W latent frames, height, width
# L text tokens · K tokens of all captions


def check_inputs(
    config: STDiT3Config,
    x: Tensor,
    timestep: Tensor,
    y: Tensor,
    mask: Tensor | Sequence[int] | None,
    x_mask: Tensor | None,
    sizes: dict[str, Tensor | None],
) -> None:
    """Raises ModelInputError with one sentence for the first thing that does not fit."""
    channels = config.in_channels
    if x.ndim != 5 or x.shape[1] != channels or not x.is_floating_point():
        raise ModelInputError(
            f"latents must be floating point [B, {channels}, T, H, W]; they are {_said(x)}"
        )
    if min(x.shape) == 0:
        raise ModelInputError(f"latents are empty: {_said(x)}")
    batch = len(x)
    if timestep.shape != (batch,):
        raise ModelInputError(f"timestep must be [{batch}], one per clip; it is {_said(timestep)}")
    for name, value in sizes.items():
        if value is None:
            raise ModelInputError(f"STDiT3 needs {name} of the clips")
        if value.ndim != 1 or not _repeats(len(value), batch):
            raise ModelInputError(f"{name} must be [{batch}], one per clip; it is {_said(value)}")
    _check_text(config, y, mask, batch)
    if x_mask is not None:
        frames = x.shape[2]
        tokens = -(-frames // config.patch_size[0])
        fits = x_mask.shape in ((batch, frames), (batch, tokens))
        if not fits or x_mask.dtype != torch.bool:
            raise ModelInputError(
                f"x_mask must be bool [{batch}, {frames}], one entry per frame; it is "
                f"{_said(x_mask)}"
            )


def _check_text(
    config: STDiT3Config, y: Tensor, mask: Tensor | Sequence[int] | None, batch: int
) -> None:
    if not y.is_floating_point():
        raise ModelInputError(f"text features must be floating point; they are {_said(y)}")
    if config.skip_y_embedder:
        if y.ndim != 3 or y.shape[0] != 1 or y.shape[2] != config.hidden_size:
            raise ModelInputError(
                f"packed text must be [1, tokens, {config.hidden_size}]; it is {_said(y)}"
            )
        lengths = [int(length) for length in mask] if mask is not None else []
        if sum(lengths) != y.shape[1] or len(lengths) != batch:
            raise ModelInputError(
                f"packed text has {y.shape[1]} tokens, its lengths {lengths} are for a batch of "
                f"{batch}"
            )
        return
    channels = config.caption_channels
    if y.ndim != 4 or y.shape[0] != batch or y.shape[1] != 1 or y.shape[3] != channels:
        raise ModelInputError(
            f"text features must be [{batch}, 1, L, {channels}]; they are {_said(y)}"
        )
    length, limit = y.shape[2], config.model_max_length
    if not 0 < length <= limit:
        raise ModelInputError(
            f"captions have {length} tokens, the model takes 1 to {limit}",
            hint=f"encode with max_length {limit}, or set model_max_length",
        )
    if mask is None:
        return
    shape = tuple(torch.as_tensor(mask).shape)
    if len(shape) != 2 or shape[1] != length or not _repeats(shape[0], batch):
        raise ModelInputError(
            f"the text mask must be [{batch}, {length}], or fewer rows that repeat; "
            f"it is {list(shape)}"
        )


def _repeats(rows: int, batch: int) -> bool:
    return rows > 0 and batch % rows == 0


def _said(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def repeated(rows: Tensor, batch: int) -> Tensor:
    """Guidance doubles the batch and leaves these inputs as they are; they repeat."""
    times = batch // len(rows)
    return rows if times == 1 else rows.repeat(times, *[1] * (rows.ndim - 1))


def is_all_true(mask: Tensor) -> bool:
    """Where looking is free: on an accelerator it would wait for the whole queue, so False."""
    return mask.device.type == "cpu" and bool(mask.all())


def frame_mask(x_mask: Tensor | None, tokens: int, patch_frames: int) -> Tensor | None:
    """Which frames of tokens are noised, [B, tokens]; None when all are.

    Takes one entry per frame or per token. Lies on the mask's own device: one on the CPU costs
    nothing when it is all true, whatever the model's device.
    """
    if x_mask is None or is_all_true(x_mask):
        return None
    if x_mask.shape[1] == tokens:
        return x_mask
    # A token of several frames counts as noised as soon as one of them is.
    padded = nn.functional.pad(x_mask, (0, -x_mask.shape[1] % patch_frames))
    return padded.unflatten(1, (tokens, -1)).any(-1)


def real_columns(keep_BL: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(columns, mask over them): text positions that some caption uses, where looking is free.

    None for columns is all of them; None for the mask is no padding left.
    """
    if keep_BL.device.type != "cpu":
        return None, keep_BL
    used_L = keep_BL.any(0)
    used_L[0] |= ~used_L.any()  # attention over nothing at all is zero, but has a shape
    columns = None if bool(used_L.all()) else used_L.nonzero().flatten()
    kept = keep_BL if columns is None else keep_BL[:, columns]
    return columns, None if bool(kept.all()) else kept


def unpacked(y_1KD: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor | None]:
    """Captions laid end to end to one row each, with the mask of real tokens (None: no padding)."""
    y_BLD = nn.utils.rnn.pad_sequence(list(y_1KD[0].split(lengths)), batch_first=True)
    if len(set(lengths)) == 1:
        return y_BLD, None
    counts = torch.tensor(lengths, device=y_1KD.device)
    return y_BLD, torch.arange(y_BLD.shape[1], device=y_1KD.device) < counts[:, None]
