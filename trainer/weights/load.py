"""Weights into a model, with a report; refused before anything is set when they are not its own."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import CheckpointError
from trainer.weights import architecture
from trainer.weights.report import LoadReport
from trainer.weights.source import Source, find_source
from trainer.weights.tensorfile import dtype_name

LEAST_SHARE = 0.99  # of what a source should give
Place = str | os.PathLike[str]
# Of PixArt's tensors, positions are computed and alpha's size inputs are not used.
_LEFT_OUT = re.compile(r"pos_embed|csize_embedder\.|ar_embedder\.")
# Of STDiT3's tensors, those that no PixArt has.
_NEW = re.compile(
    r"temporal_blocks\.|fps_embedder\.|rope\.|spatial_blocks\.\d+\.attn\.[qk]_norm\.weight$"
)
_PATCH, _NULL_TEXT = "x_embedder.proj.weight", "y_embedder.y_embedding"
_FINAL = ("final_layer.linear.weight", "final_layer.linear.bias")


def read_weights(path: Place) -> dict[str, Tensor]:
    """All tensors at a path (see `find_source`), without an average; raises CheckpointError."""
    return find_source(path).read()


def read_checkpoint(place: Place | Source, *, ema: bool = True) -> tuple[dict[str, Tensor], bool]:
    """A model's weights from any source, and whether they are its EMA (of what was trained)."""
    source = place if isinstance(place, Source) else find_source(place)
    weights = source.read()
    if not ema or source.average is None:
        return weights, False
    average = source.average.read()
    for name in weights.keys() & average.keys():
        if average[name].ndim == 1 < weights[name].ndim:
            # Open-Sora 2 with async_io off saves what rank 0 holds of the sharded average.
            raise CheckpointError(
                f"{source.average.path} holds one rank's flat part of the average, not all of it",
                hint="use the weights themselves: --weights model",
            )
    return {**weights, **average}, True


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Place) -> None:
    """Set all tensors of the model. Raises CheckpointError naming missing, extra or misshapen."""
    report, _ = compare(model, weights, str(source))
    if problems := _problems(report, (*report.missing, *report.new)):
        raise CheckpointError(f"{source} is not of this model: {problems}", hint=_hint(report))
    _require_numbers(weights, report)
    _give_memory(model, report)
    model.load_state_dict(dict(weights))


def load_into(
    model: nn.Module, place: Place, *, ema: bool = False, allow_partial: bool = False
) -> LoadReport:
    """Start a freshly built model from weights of any source; PixArt's are converted. A model on
    the meta device gets its memory here, and random numbers (16 CPU seconds for an XL/2) only where
    the source is not whole. `ema` takes a checkpoint's average if it has one. Raises
    CheckpointError, and leaves the model as it was, when less than 99 % of the tensors of either
    side fit; with `allow_partial` what fits is taken."""
    weights, averaged = read_checkpoint(place, ema=ema)
    report, ready = compare(model, weights, str(place))
    if ema:
        average = "the average of the weights (EMA)"
        note = average if averaged else f"{place} has no EMA; using the weights themselves"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    fits = report.share >= LEAST_SHARE and not report.mismatched
    if not report.loaded or not (fits or allow_partial):
        hint = _hint(report)
        if report.loaded:
            hint += "; --allow-partial takes what fits and leaves the rest as it is made"
        raise CheckpointError(
            f"{report.source} is not of this model: {len(report.loaded)} of {report.expected} "
            f"tensors fit; {_problems(report, report.missing)}",
            hint=hint,
        )
    _require_numbers(ready, report)
    _give_memory(model, report)
    model.load_state_dict({name: ready[name] for name in report.loaded}, strict=False)
    return report


def _require_numbers(weights: Mapping[str, Tensor], report: LoadReport) -> None:
    """Raises CheckpointError naming tensors with NaN or infinity: the first step would end with a
    loss that is not finite, which says nothing of the weights. 1 s of CPU for a billion."""
    bad = [name for name in report.loaded if not bool(weights[name].isfinite().all())]
    if bad:
        more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
        what = f"{bad[0]}{more} of {len(report.loaded):,} tensors"
        raise CheckpointError(
            f"{report.source} holds values that are not finite (NaN or infinity), in {what}",
            hint="take an earlier checkpoint, or get the file again: it was saved by a run that "
            "had diverged, or is damaged",
        )


def _give_memory(model: nn.Module, report: LoadReport) -> None:
    """Turn a model on the meta device into one on the CPU, as fresh as its class makes it."""
    if not any(tensor.is_meta for tensor in model.state_dict().values()):
        return
    model.to_empty(device="cpu")
    hidden = {name for name, _ in model.named_buffers()} - model.state_dict().keys()
    if report.is_whole and not hidden:
        return
    fresh = type(model)(model.config)
    model.load_state_dict(fresh.state_dict())
    for name in hidden:
        model.get_buffer(name).copy_(fresh.get_buffer(name))


def compare(
    model: nn.Module, weights: Mapping[str, Tensor], source: str
) -> tuple[LoadReport, Mapping[str, Tensor]]:
    """What of `weights` fits, and they by the model's names. Raises CheckpointError."""
    wanted = model.state_dict()
    found = architecture.architecture_of(weights)
    if found.kind == architecture.PIXART_DIFFUSERS:
        raise CheckpointError(
            f"{source} is PixArt in diffusers' layout, which is not read here",
            hint="take the .pth of PixArt itself, e.g. PixArt-Sigma-XL-2-2K-MS.pth",
        )
    left_out: list[str] = []
    from_pixart = found.kind == architecture.PIXART and hasattr(model, "spatial_blocks")
    if from_pixart:
        weights, left_out = _from_pixart(weights, wanted)
    for name in weights.keys() & wanted.keys():
        given, own = weights[name], wanted[name]
        # 8-bit floats come with scales under other names
        if own.is_floating_point() != (given.is_floating_point() and given.element_size() > 1):
            raise CheckpointError(
                f"{source}: {name} is {dtype_name(given)}, the model's is {dtype_name(own)}; "
                "quantised weights are not read here",
                hint="take the weights in bf16, fp16 or fp32",
            )
    absent = [name for name in wanted if name not in weights]
    new = tuple(name for name in absent if from_pixart and _NEW.match(name))
    both = {name: (weights[name], tensor) for name, tensor in wanted.items() if name in weights}
    shapes = {name: (tuple(a.shape), tuple(b.shape)) for name, (a, b) in both.items()}
    report = LoadReport(
        source=source,
        model=found.name if found.kind != architecture.UNKNOWN else "weights",
        loaded=tuple(name for name, (got, want) in shapes.items() if got == want),
        missing=tuple(name for name in absent if name not in new),
        unexpected=tuple(name for name in weights if name not in wanted),
        mismatched=tuple((name, got, want) for name, (got, want) in shapes.items() if got != want),
        new=new,
        left_out=tuple(left_out),
        notes=_differences(found, model),
    )
    return report, weights


def _from_pixart(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """PixArt's tensors for a model with the state dict `wanted`, and the names left out."""
    left_out = [name for name in tensors if _LEFT_OUT.match(name)]
    kept = {name: tensor for name, tensor in tensors.items() if name not in set(left_out)}
    result = {re.sub(r"^blocks\.", "spatial_blocks.", name): kept[name] for name in kept}
    times = wanted[_PATCH].shape[2] if _PATCH in wanted else 1
    if _PATCH in result and result[_PATCH].ndim == 4:
        # [D, C, T, H, W] whose answer to a still clip is the image model's to one of its frames
        result[_PATCH] = result[_PATCH].unsqueeze(2).expand(-1, -1, times, -1, -1) / times
    for name in _FINAL:
        if times > 1 and name in result:  # each frame of a patch starts as the image
            result[name] = torch.cat([result[name]] * times)
    if _NULL_TEXT in result and _NULL_TEXT in wanted:
        # Cut, or longer by repeats of the last row, as upstream does.
        rows, length = result[_NULL_TEXT], len(wanted[_NULL_TEXT])
        rest = rows[-1:].expand(max(0, length - len(rows)), -1)
        result[_NULL_TEXT] = torch.cat([rows[:length], rest])
    return result, left_out


def _differences(found: architecture.Architecture, model: nn.Module) -> tuple[str, ...]:
    """What to change in the config, when weights and model are of different sizes."""
    config = getattr(model, "config", None)
    if not found.options or not dataclasses.is_dataclass(config):
        return ()
    wanted: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if found.kind == architecture.PIXART:  # norms are new, rows and patches are converted
        for name in ("qk_norm", "model_max_length", "patch_size", "pred_sigma"):
            wanted.pop(name, None)
    differences = [
        f"{name} {value} (model: {wanted[name]})"
        for name, value in found.options.items()
        if name in wanted and value != wanted[name]
    ]
    return (f"the weights have {', '.join(differences)}",) if differences else ()


def _problems(report: LoadReport, missing: Sequence[str]) -> str:
    shapes = [f"{name} {got} for {want}" for name, got, want in report.mismatched]
    unknown = sorted(report.unexpected)
    counts = (sorted(missing), "missing"), (unknown, "unknown"), (shapes, "of another shape")
    return ", ".join(f"{len(names)} {what} ({names[0]})" for names, what in counts if names)


def _hint(report: LoadReport) -> str:
    different = [note for note in report.notes if note.startswith("the weights have")]
    if different:
        return different[0]
    is_other = report.model.startswith((architecture.VAE, architecture.KL, architecture.T5))
    network = report.model if is_other else architecture.other_network(report.unexpected)
    if network and not report.loaded:
        return f"these are tensors of {network}, which is another network"
    known = set(report.unexpected)
    for name in report.missing[:20]:
        prefixes = {found[: -len(name)] for found in known if found.endswith(f".{name}")}
        if len(prefixes) == 1:
            return f"its names begin with {prefixes.pop()!r}: save them without it"
    return "use the config the checkpoint was trained with"
