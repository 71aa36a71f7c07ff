"""The predicted peak is within 10 % of the tensors that are alive in a real step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.models.live_bytes import LiveBytes
from tests.trainer.models.stdit_cases import batch, small_model
from trainer.models import stdit
from trainer.models.attention import calls, frames
from trainer.models.attention.table import Table
from trainer.models.kernels import kernels_used
from trainer.models.peak import Peak, State, predicted_peak
from trainer.models.stdit import STDiT3, build_stdit

# B batch · I queries · K keys · N heads · E width of a head
BARE = State(bare=True)
SHAPES = [(2, (4, 6, 6)), (2, (3, 16, 20)), (4, (1, 32, 32)), (3, (9, 12, 12))]


def counted(model: STDiT3, inputs: dict[str, Tensor], **more: Any) -> int:
    live = LiveBytes([*model.parameters(), *model.buffers(), *inputs.values()])
    with live:
        model(**inputs, **more).square().mean().backward()
    return live.peak


CHECKPOINTS = ["off", "all", "every 2", "0.5 MB"]


PLAIN, WIDE = {}, {"hidden_size": 64, "num_heads": 4, "depth": 3, "freeze_y_embedder": True}


@pytest.mark.parametrize("what", CHECKPOINTS)
@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (PLAIN, torch.float32),
        ({"qk_norm": False}, torch.bfloat16),
        pytest.param(PLAIN, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param({"qk_norm": False}, torch.float32, marks=pytest.mark.slow),
        pytest.param(WIDE, torch.float32, marks=pytest.mark.slow),
        pytest.param(WIDE, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_small_models_on_the_cpu(dtype: torch.dtype, what: str, options: dict[str, Any]) -> None:
    """Two shapes each: every shape meets each dtype, each checkpointing and each model."""
    model = small_model(**options).to(dtype).train()
    model.enable_grad_checkpoint(what)
    first = (CHECKPOINTS.index(what) + (dtype == torch.bfloat16)) % 2
    for count, latent in SHAPES[first::2]:
        predicted = predicted_peak(model, count, latent, 6, BARE).total
        assert predicted == pytest.approx(counted(model, batch(latent, count)), rel=0.1)
        model.zero_grad()


def test_given_frames_cost_a_modulation_for_each_frame() -> None:
    model, latent = small_model().train(), (9, 4, 4)
    x_mask = torch.ones(3, 9, dtype=torch.bool)
    x_mask[:, 0] = False
    got = counted(model, batch(latent, 3), x_mask=x_mask)
    assert predicted_peak(model, 3, latent, 6, BARE, masked=True).total == pytest.approx(
        got, rel=0.1
    )


@torch.library.custom_op("peak_test::flash", mutates_args=())
def flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("only counted")


@torch.library.custom_op("peak_test::flash_backward", mutates_args=())
def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError("only counted")


@flash.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)  # heads side by side
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # Of pytorch's flash_api.cpp: dq_accum, rows rounded up to 128, head widths to 32.
    rows, width = -(-q.shape[2] // 128) * 128, -(-q.shape[3] // 32) * 32
    accumulator = q.new_empty(q.shape[0], rows, q.shape[1], width, dtype=torch.float32)
    found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    accumulator.zero_()
    return found


flash.register_autograd(
    lambda ctx, grad, _: flash_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a GPU as single operations of known outputs: on the meta device nothing runs."""

    def to_packed_text(q: Tensor, kv: Tensor, packed: calls.Packed) -> Tensor:
        k, v = kv.unbind(1)
        rows = (x.flatten(0, -3).transpose(0, 1)[None] for x in (q, k, v))
        return flash(*rows)[0][0].transpose(0, 1).view(q.shape)

    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: flash(q, k, v)[0])
    monkeypatch.setattr(frames, "is_usable", lambda q: True)
    monkeypatch.setattr(stdit, "packs_text", lambda *_: True)
    monkeypatch.setattr(calls, "to_packed_text", to_packed_text)


@pytest.mark.long
@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    ("count", "latent"), [(8, (15, 45, 80)), (475, (1, 18, 32)), (1, (120, 45, 80))]
)
@pytest.mark.parametrize("what", ["all", "every 2", "12 GB", "off"])
def test_blocks_of_xl_on_a_gpu(
    frozen: bool, count: int, latent: tuple[int, int, int], what: str
) -> None:
    """Two pairs of blocks of XL/2 in bf16 at buckets of stage 1; no kernel runs."""
    with torch.device("meta"):
        model = build_stdit("STDiT3-XL/2", depth=2, freeze_y_embedder=frozen).bfloat16().train()
        sizes = dict.fromkeys(("fps", "height", "width"), torch.zeros(count))
        x, times = torch.zeros(count, 4, *latent), torch.zeros(count)
        y = torch.zeros(count, 1, 300, 4096, dtype=torch.bfloat16)
    model.use_fused(False)  # our kernels' needs are measured on the null GPU (tests/gpu/null)
    model.enable_grad_checkpoint(what)
    inputs = {"x_BCTHW": x, "timestep_B": times, "y": y, **sizes}
    got = counted(model, inputs, mask=torch.ones(count, 300, dtype=torch.int64))
    predicted = predicted_peak(model, count, latent, state=BARE, device="cuda")
    assert predicted.total == pytest.approx(got, rel=0.1)


def test_kernels_are_those_that_attend() -> None:
    def names(device: str, item: int, head: int, frames: int) -> tuple[str, str, str]:
        found = kernels_used(Table(), device, item, head, frames, 300, 20)
        return found.spatial, found.temporal, found.text

    assert names("cpu", 4, 72, 15) == ("flash", "products", "products")
    assert names("cpu", 2, 72, 15) == ("flash", "flash", "flash")
    assert names("cuda", 2, 72, 15) == ("flash", "frames", "varlen")
    assert names("cuda", 2, 72, 129) == ("flash", "flash", "varlen")
    assert names("cuda", 2, 36, 15) == ("flash", "products", "math")  # rows of 72 bytes
    assert names("cuda", 4, 72, 15) == ("flash", "products", "efficient")
    assert names("cuda", 4, 36, 15) == ("flash", "products", "efficient")


def peak(**options: Any) -> Peak:
    with torch.device("meta"):
        model = build_stdit("STDiT3-XL/2", freeze_y_embedder=True).bfloat16().train()
    model.enable_grad_checkpoint("all", offload=options.pop("offload", False))
    return predicted_peak(model, 8, (15, 45, 80), state=State(**options), device="cuda")


@pytest.mark.long
def test_the_state_of_a_rank_is_its_share() -> None:
    """XL/2 in bf16: 1.2 billion weights are trained, with 16 bytes each beside the weights."""
    alone, many = peak(world=1), peak(world=192)
    assert alone.optimizer == pytest.approx(16 * 1.2e9, rel=0.01)
    assert many.optimizer == pytest.approx(alone.optimizer / 192, rel=0.01)
    assert many.weights == alone.weights
    assert peak(world=192, plugin="zero1").gradients >= many.gradients
    assert peak(world=8, accumulates=True).gradients > peak(world=8).gradients
    gathered = peak(world=192, plugin="fsdp")
    assert gathered.weights < 0.2 * many.weights
    # One pass of a run in which other buckets pass in parts: no sums of its own.
    stays = peak(world=192, plugin="fsdp", keeps_whole=True)
    assert stays.weights == many.weights
    assert stays.gradients == gathered.gradients
    parts = peak(world=192, plugin="fsdp", keeps_whole=True, chunks=True)
    assert parts.gradients > stays.gradients + 4 * 1.1e9


@pytest.mark.long
def test_activations_on_the_host_are_at_most_three_blocks() -> None:
    here, there = peak(world=192), peak(world=192, offload=True)
    assert there.kept < here.kept + 2 * 6e9
    with torch.device("meta"):
        model = build_stdit("STDiT3-XL/2").bfloat16()
    model.enable_grad_checkpoint("off", offload=True)
    moved = predicted_peak(model, 8, (15, 45, 80), device="cuda")
    model.enable_grad_checkpoint("off")
    assert moved.kept < predicted_peak(model, 8, (15, 45, 80), device="cuda").kept / 10
