"""What STDiT3 is given, checked by shape and dtype alone: nothing here waits for an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.errors import ModelInputError
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
        raise _wrong("latents", f"floating point [B, {channels}, T, H, W]", x)
    if min(x.shape) == 0:
        raise ModelInputError(f"latents are empty: {list(x.shape)}")
    batch, frames = len(x), x.shape[2]
    if timestep.shape != (batch,):
        raise _wrong("timestep", f"[{batch}], one per clip", timestep)
    for name, value in sizes.items():
        if value is None:
            raise ModelInputError(f"STDiT3 needs {name} of the clips")
        if value.ndim != 1 or not _repeats(len(value), batch):
            raise _wrong(name, f"[{batch}], one per clip", value)
    _check_text(config, y, mask, batch)
    if x_mask is not None:
        fits = x_mask.shape in ((batch, frames), (batch, -(-frames // config.patch_size[0])))
        if not fits or x_mask.dtype != torch.bool:
            raise _wrong("x_mask", f"bool [{batch}, {frames}], one entry per frame", x_mask)


def _check_text(
    config: STDiT3Config, y: Tensor, mask: Tensor | Sequence[int] | None, batch: int
) -> None:
    if not y.is_floating_point():
        raise _wrong("text features", "floating point", y)
    if config.skip_y_embedder:
        if y.ndim != 3 or y.shape[0] != 1 or y.shape[2] != config.hidden_size:
            raise _wrong("packed text", f"[1, tokens, {config.hidden_size}]", y)
        lengths = [int(length) for length in mask] if mask is not None else []
        if sum(lengths) != y.shape[1] or len(lengths) != batch:
            text = f"packed text has {y.shape[1]} tokens, its lengths {lengths}"
            raise ModelInputError(f"{text} are for a batch of {batch}")
        return
    channels = config.caption_channels
    if y.ndim != 4 or y.shape[0] != batch or y.shape[1] != 1 or y.shape[3] != channels:
        raise _wrong("text features", f"[{batch}, 1, L, {channels}]", y)
    length, limit = y.shape[2], config.model_max_length
    if not 0 < length <= limit:
        hint = f"encode with max_length {limit}, or set model_max_length"
        text = f"captions have {length} tokens, the model takes 1 to {limit}"
        raise ModelInputError(text, hint=hint)
    if mask is None:
        return
    rows = torch.as_tensor(mask)
    if rows.ndim != 2 or rows.shape[1] != length or not _repeats(len(rows), batch):
        raise _wrong("the text mask", f"[{batch}, {length}], or fewer rows that repeat", rows)


def _repeats(rows: int, batch: int) -> bool:
    return rows > 0 and batch % rows == 0


def _wrong(name: str, form: str, found: Tensor) -> ModelInputError:
    kind = str(found.dtype).removeprefix("torch.")
    return ModelInputError(f"{name} must be {form}; not {kind} {list(found.shape)}")


def repeated(rows: Tensor, batch: int) -> Tensor:
    """Guidance doubles the batch and leaves these inputs as they are; they repeat."""
    times = batch // len(rows)
    return rows if times == 1 else rows.repeat(times, *[1] * (rows.ndim - 1))


def frame_mask(x_mask: Tensor | None, tokens: int, patch_frames: int) -> Tensor | None:
    """Which frames of tokens are noised, [B, tokens], of frames or tokens; None when all are."""
    # On an accelerator a look at the values would wait for the whole queue.
    if x_mask is None or (x_mask.device.type == "cpu" and bool(x_mask.all())):
        return None
    if x_mask.shape[1] == tokens:
        return x_mask
    # A token of several frames counts as noised as soon as one of them is.
    padded = nn.functional.pad(x_mask, (0, -x_mask.shape[1] % patch_frames))
    return padded.unflatten(1, (tokens, -1)).any(-1)


def real_columns(keep_BL: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(columns, mask over them): text positions in use where looking is free; None is all."""
    if keep_BL.device.type != "cpu":
        return None, keep_BL
    used_L = keep_BL.any(0)
    used_L[0] |= ~used_L.any()  # attention over nothing at all is zero, but has a shape
    columns = None if bool(used_L.all()) else used_L.nonzero().flatten()
    kept = keep_BL if columns is None else keep_BL[:, columns]
    return columns, None if bool(kept.all()) else kept


def unpacked(y_1KD: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor | None]:
    """Captions that lie end to end, a row each; which tokens are real, on the host (None: all)."""
    y_BLD = nn.utils.rnn.pad_sequence(list(y_1KD[0].split(lengths)), batch_first=True)
    if len(set(lengths)) == 1:
        return y_BLD, None
    return y_BLD, torch.arange(y_BLD.shape[1]) < torch.tensor(lengths)[:, None]
