"""Lambda's form of the plain path: the same numbers, by the kernels that upstream switches on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.models.stdit_cases import batch, small_model
from tests.trainer.models.test_stdit_packed_text import VaryingLengths
from trainer.bench.shapes import shapes_of
from trainer.config import load as configuration
from trainer.models import plain
from trainer.models.stdit import STDiT3

GIVEN = torch.tensor([[False, True, True], [True, True, False]])
LENGTHS = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]])


class Names(TorchDispatchMode):
    """Which operations run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append(func.name())
        return func(*args, **(kwargs or {}))


def passes(
    model: STDiT3, recompute: bool = False, **changes: Any
) -> tuple[list[Tensor], list[str]]:
    """Output and gradients, and the names of all operations."""
    given = {**batch((3, 6, 6)), "x_mask": GIVEN, "mask": LENGTHS}
    positional = [given.pop(name) for name in ("x_BCTHW", "timestep_B", "y")]
    model.zero_grad()
    with Names() as names:
        out = plain.plain_forward(model, *positional, **given, recompute=recompute, **changes)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.detach(), *(grad.clone() for grad in grads)], names.found


@pytest.mark.long
@pytest.mark.parametrize("recompute", [False, True])
def test_lambdas_form_gives_the_plain_paths_numbers(recompute: bool) -> None:
    model = small_model(class_dropout_prob=0.0).double()
    want, plain_names = passes(model)
    got, names = passes(model, recompute, fused=True)
    assert len(got) == len(want) > 40
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    # 2 clips of 3 frames of 9 places: 9 > 6, and 3 frames are fewer than 18 sequences.
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    of_text = plain_names.count(flash)
    assert names.count(flash) == (of_text + 2) * (2 if recompute else 1)  # 2 spatial blocks


@pytest.mark.long
def test_captions_of_all_clips_are_one_call_where_the_kernel_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int, list[int]]] = []

    def varlen_attn(q: Tensor, k: Tensor, v: Tensor, *ends: Any) -> Tensor:
        q_ends, k_ends, queries, keys = ends
        calls.append((queries, keys, k_ends.tolist()))
        return VaryingLengths.apply(q, k, v, q_ends, k_ends)

    model = small_model(class_dropout_prob=0.0).double()
    want, _ = passes(model)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr(plain, "packs_text", lambda *_: True)
    got, _ = passes(model, fused=True)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert calls == [(27, 5, [0, 2, 7])] * 4  # blocks


def test_upstream_takes_flash_attention_where_a_sequence_is_longer_than_the_batch() -> None:
    config = configuration.load("stage1")
    spatial: dict[str, set[bool]] = {}
    temporal = set()
    for shape in shapes_of(config):
        frames, places = shape.latent[0], shape.tokens((1, 2, 2)) // shape.latent[0]
        takes = plain.takes_flash(shape.batch_size * frames, places)
        spatial.setdefault(shape.resolution, set()).add(takes)
        temporal.add(plain.takes_flash(shape.batch_size * places, frames))
    assert temporal == {False}
    assert spatial["144p"] == {False}
    assert spatial["240p"] == spatial["360p"] == {True}
