"""Captions packed for attention of variable length give what the mask gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.models.stdit_cases import batch, small_model
from trainer.models import plain, stdit
from trainer.models.attention import calls
from trainer.models.attention.table import Table
from trainer.models.kernels import kernels_used

MASK = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]])


class VaryingLengths(torch.autograd.Function):
    """torch's varlen_attn, which runs on a GPU only: by clips, gradients of the rest are garbage."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, q_ends, k_ends)
        return _by_clips(q, k, v, q_ends, k_ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, q_ends, k_ends = ctx.saved_tensors
        parts = [part.detach().requires_grad_() for part in (q, k, v)]
        with torch.enable_grad():
            out = _by_clips(*parts, q_ends, k_ends)
        found = torch.autograd.grad(out, parts, grads[0])
        for grad in found[1:]:
            grad[k_ends[-1] :] = float("nan")
        return *found, None, None


def _by_clips(q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor) -> Tensor:
    outs = []
    for clip in range(len(q_ends) - 1):
        mine, keys = slice(*q_ends[clip : clip + 2]), slice(*k_ends[clip : clip + 2])
        parts = (part.transpose(0, 1)[None] for part in (q[mine], k[keys], v[keys]))
        outs.append(F.scaled_dot_product_attention(*parts)[0].transpose(0, 1))
    return torch.cat(outs)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine packs as one with a GPU does."""

    @torch.compiler.disable
    def varlen_attn(q: Tensor, k: Tensor, v: Tensor, *ends: Any) -> Tensor:
        q_ends, k_ends, queries, keys = ends
        assert int(q_ends.diff().max()) == queries
        assert int(k_ends.diff().max()) <= keys
        assert len(k) == (len(q_ends) - 1) * keys  # fixed by the shape of the batch
        return VaryingLengths.apply(q, k, v, q_ends, k_ends)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr(stdit, "packs_text", lambda *_: True)


def passes(model: torch.nn.Module, mask: Any, **changes: Any) -> list[Tensor]:
    """Output and all gradients."""
    out = model(**{**batch(count=3), "mask": mask, **changes})
    model.zero_grad()
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.detach(), *grads]


@pytest.mark.parametrize("recomputed", [False, True])
def test_output_and_gradients_are_those_of_the_mask(
    recomputed: bool, request: pytest.FixtureRequest
) -> None:
    model = small_model(qk_norm=True, class_dropout_prob=0.0).double().train()
    model.enable_grad_checkpoint(recomputed)
    wanted = passes(model, MASK)
    request.getfixturevalue("packs")
    found = passes(model, MASK)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_guidance_repeats_the_masks_of_the_captions(request: pytest.FixtureRequest) -> None:
    model = small_model().double()
    doubled = {name: torch.cat([value, value]) for name, value in batch(count=3).items()}
    doubled |= {name: doubled[name][:3] for name in ("fps", "height", "width")}
    with torch.no_grad():
        wanted = model(**{**doubled, "mask": MASK})
        request.getfixturevalue("packs")
        found = model(**{**doubled, "mask": MASK})
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("packs")
def test_captions_of_other_lengths_compile_nothing_new() -> None:
    model = small_model(class_dropout_prob=0.0).double().train()
    torch._dynamo.reset()
    model.compile_blocks("eager")
    passes(model, MASK)
    with torch._dynamo.config.patch(error_on_recompile=True):
        passes(model, torch.ones_like(MASK))
        passes(model, MASK.roll(1, 0))


def test_where_captions_begin() -> None:
    y = torch.arange(18.0).view(3, 6, 1)
    tokens, packed = calls.pack(y, MASK != 0, queries=4)
    assert tokens[:9, 0].tolist() == [0, 1, 2, 6, 7, 8, 9, 10, 12]
    assert sorted(tokens[:, 0].tolist()) == list(range(18))
    assert packed.key_ends.tolist() == [0, 3, 8, 9]
    assert packed.query_ends.tolist() == [0, 4, 8, 12]
    assert packed.is_padding.flatten().tolist() == [False] * 9 + [True] * 9
    assert (packed.queries, packed.keys) == (4, 6)


@pytest.mark.parametrize(
    ("device", "dtype", "width", "packed"),
    [
        ("cuda", torch.bfloat16, 72, True),
        ("cuda", torch.float16, 16, True),
        ("cuda", torch.bfloat16, 20, False),  # "head_size must be a multiple of 8"
        ("cuda", torch.bfloat16, 12, False),
        ("cuda", torch.float32, 72, False),
        ("cpu", torch.bfloat16, 72, False),
    ],
)
def test_captions_are_packed_where_the_kernel_takes_them(
    device: str, dtype: torch.dtype, width: int, packed: bool
) -> None:
    assert calls.packs_text(torch.device(device), dtype, Table(), 300, width) is packed
    predicted = kernels_used(Table(), device, dtype.itemsize, width, 15, 300, 300).text
    assert (predicted == "varlen") is packed


def test_a_model_asks_with_the_width_of_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def packs_text(*what: Any) -> bool:
        asked.append(what[-1])
        return False

    monkeypatch.setattr(stdit, "packs_text", packs_text)
    monkeypatch.setattr(plain, "packs_text", packs_text)
    model = small_model(hidden_size=160, num_heads=8)  # the demo's
    with torch.no_grad():
        model(**batch())
        inputs = batch()
        plain.plain_forward(model, y_B1LC=inputs.pop("y"), **inputs, fused=True)
    assert set(asked) == {20}


def test_what_a_kernel_leaves_in_gradients_of_padding_is_not_read() -> None:
    kv = torch.randn(5, 2, 2, 8, requires_grad=True)
    is_padding = torch.tensor([False, False, False, True, True])[:, None, None]
    left = torch.full_like(kv, torch.nan)
    left[:3] = 1.0
    same = calls._PaddingUnread.apply(kv, is_padding)
    assert torch.equal(same, kv)
    assert torch.equal(torch.autograd.grad(same, kv, left)[0], left.nan_to_num(0.0))
