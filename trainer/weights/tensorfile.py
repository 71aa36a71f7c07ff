"""One file of tensors, safetensors or torch pickle: never unpickled as code, memory-mapped."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.models import lfs

SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".ckpt")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# Where training programs put the tensors inside their pickle; the first one found counts.
_WRAPPERS = ("state_dict", "model", "module", "model_state_dict", "ema", "state_dict_ema")
# What wrappers of a module (DDP, torch.compile) put before every name.
_PREFIXES = ("module.", "_orig_mod.")
_CODE = re.compile(r"GLOBAL:? ?'?([\w.]+)")
SAFE_TORCH = (2, 6)  # up to 2.5.1 weights_only lets a pickle run code (CVE-2025-32434)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _damaged(problem: str) -> CheckpointError:
    hint = "copy the file again and compare its size with the source's"
    return CheckpointError(problem, hint=hint)


def read_file(path: Path, *, shapes_only: bool = False) -> dict[str, Tensor]:
    """The file's tensors by name, on the CPU; with `shapes_only` on the meta device, data unread.
    Runs nothing in a torch pickle. Raises CheckpointError, also where torch is too old for that."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if why := lfs.pointer(path, "the weights"):
        raise CheckpointError(why, hint=lfs.HINT)
    if size == 0:
        raise _damaged(f"{path} cannot be read: it is empty")
    is_pickle = head.startswith((b"PK", b"\x80"))
    if head[8:9] == b"{" or (path.suffix == ".safetensors" and not is_pickle):
        return _safetensors(path, size, head, shapes_only)
    if is_pickle:
        return _pickled(path, size, head, shapes_only)
    what = "neither safetensors nor a torch checkpoint"
    raise CheckpointError(f"{path} is not a valid file of weights: it is {what}")


def _safetensors(path: Path, size: int, head: bytes, shapes_only: bool) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            if not shapes_only:
                return {name: file.get_tensor(name) for name in names}
            return {name: _shape_of(file.get_slice(name)) for name in names}
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        declared = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
        cut = declared > size or "not fully covered" in str(error)
        why = f"it is cut off at {size:,} bytes" if cut else _first_line(error)
        raise _damaged(f"{path} cannot be read: {why}") from None


def _shape_of(piece: Any) -> Tensor:
    if (dtype := DTYPES.get(piece.get_dtype())) is None:
        raise ValueError(f"its dtype {piece.get_dtype()} is not known here")
    return torch.empty(piece.get_shape(), dtype=dtype, device="meta")


def _pickled(path: Path, size: int, head: bytes, shapes_only: bool) -> dict[str, Tensor]:
    known = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if known is None or (int(known[1]), int(known[2])) < SAFE_TORCH:
        raise CheckpointError(
            f"{path} is a pickle, and torch {torch.__version__} can be made to run code by one: "
            f"{SAFE_TORCH[0]}.{SAFE_TORCH[1]} or newer is needed",
            hint="install a newer torch, or get the .safetensors file",
        )
    try:
        zipped = zipfile.is_zipfile(path)
    except zipfile.BadZipFile as error:
        raise _damaged(f"{path} cannot be read, it is damaged: {error}") from None
    if head.startswith(b"PK") and not zipped:
        raise _damaged(f"{path} cannot be read: it is cut off at {size:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of pickle versions before it refuses them
            found = torch.load(
                path,
                map_location="meta" if shapes_only else "cpu",
                weights_only=True,
                mmap=zipped or None,  # the older format of torch.save cannot be mapped
            )
    except pickle.UnpicklingError as error:
        if asks := _CODE.search(str(error)):
            raise CheckpointError(
                f"{path} holds more than tensors: it asks to run {asks[1]}, which was refused",
                hint="get the .safetensors file, or save only its state_dict where you trust it",
            ) from None
        raise _damaged(f"{path} is not a torch checkpoint of tensors, or is damaged") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle can fail in any way at all
        why = f"it is cut off or damaged: {_first_line(error)}"
        raise _damaged(f"{path} cannot be read, {why}") from None
    return _unwrapped(path, found)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0] if lines else type(error).__name__


def _has_tensors(found: Any) -> bool:
    return isinstance(found, Mapping) and any(isinstance(one, Tensor) for one in found.values())


def _unwrapped(path: Path, found: Any) -> dict[str, Tensor]:
    """The tensors of any program's checkpoint dict, without step counts and the like."""
    if isinstance(found, Mapping) and {"state", "param_groups"} <= found.keys():
        raise CheckpointError(f"{path} is an optimizer's state, not a model's weights")
    for _ in range(2):  # {"state_dict": {"model": ...}} has been seen
        if isinstance(found, Mapping) and not any(isinstance(v, Tensor) for v in found.values()):
            inner = [found[name] for name in _WRAPPERS if isinstance(found.get(name), Mapping)]
            found = inner[0] if inner else found
    items = found.items() if isinstance(found, Mapping) else ()
    tensors = {name: value for name, value in items if isinstance(value, Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        keys = [f"{key!r}" for key, inner in items if _has_tensors(inner)]
        text = f"{path} holds no named tensors: it is not a model's weights"
        if keys:
            text = (
                f"{path} holds weights under {', '.join(keys[:6])}, names that are not known here"
            )
        hint = "save the one that you want: torch.save(found[NAME], FILE)" if keys else None
        raise CheckpointError(text, hint=hint)
    if odd := [name for name, tensor in tensors.items() if tensor.layout != torch.strided]:
        raise CheckpointError(f"{path}: {odd[0]} is a sparse tensor; weights are dense")
    while common := [one for one in _PREFIXES if all(name.startswith(one) for name in tensors)]:
        tensors = {name[len(common[0]) :]: tensor for name, tensor in tensors.items()}
    return tensors
