"""Each quirk that Open-Sora 1.2's weights depend on, against the plain path in fp64 and by itself.

The plain path is another program for the same definition: captions packed one by one, both
modulations computed and chosen from, attention spelled out. The model runs in fp32 and in fp64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.models.stdit_cases import batch, run, small_model
from trainer.models.plain import plain_forward
from trainer.models.stdit import STDiT3

# B batch · T latent frames · L text tokens
GIVEN = torch.tensor([[False, True, True, True], [True, True, False, False]])
LENGTHS = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
BOTH_SIDES = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]])
# What may be off, of a tensor's largest value and of the largest gradient of all.
FP32 = (1e-4, 1e-6)
FP64 = (1e-11, 1e-14)

SWEEP: list[tuple[dict[str, Any], tuple[int, int, int], dict[str, Tensor]]] = [
    ({}, (4, 6, 6), {}),
    ({}, (4, 5, 7), {"mask": LENGTHS, "x_mask": GIVEN}),  # edges padded, text packed, frames given
    ({}, (4, 6, 4), {"mask": BOTH_SIDES, "x_mask": GIVEN}),  # text padded on both sides
    ({}, (1, 7, 9), {"mask": LENGTHS}),  # image
    ({"qk_norm": False}, (3, 4, 6), {"mask": LENGTHS}),
    ({"pred_sigma": False}, (4, 4, 4), {"x_mask": GIVEN}),
    ({"patch_size": (2, 2, 2)}, (5, 5, 6), {"mask": LENGTHS}),
    ({"mlp_ratio": 2.0, "num_heads": 4, "hidden_size": 48}, (4, 6, 2), {"x_mask": GIVEN}),
    ({"depth": 1, "input_sq_size": 256}, (9, 2, 2), {}),
    ({}, (4, 4, 4), {"height": torch.tensor([720.0, 144.0]), "fps": torch.tensor([8.0, 29.97])}),
]


def plain(model: STDiT3, inputs: dict[str, Tensor], **changes: Any) -> Tensor:
    given = {**inputs, **changes}
    positional = [given.pop(name) for name in ("x_BCTHW", "timestep_B", "y")]
    return plain_forward(model, *positional, **given)


@pytest.mark.parametrize(("options", "size", "changes"), SWEEP)
def test_sizes_and_masks_agree_with_the_plain_path_in_fp64(
    options: dict[str, Any], size: tuple[int, int, int], changes: dict[str, Tensor]
) -> None:
    model, inputs = small_model(**options), batch(size)
    single = gradients_and_output(model, model, {**inputs, **changes})
    model = model.double()
    want = gradients_and_output(model, lambda **given: plain(model, given), {**inputs, **changes})
    double = gradients_and_output(model, model, {**inputs, **changes})
    assert single[0].dtype == torch.float32
    of_all = max(float(reference.abs().max()) for reference in want)
    for ours, exact, reference in zip(single, double, want, strict=True):
        of_this = float(reference.abs().max())
        for got, (own, general) in ((ours, FP32), (exact, FP64)):
            error = float((got - reference).abs().max())
            assert error <= own * of_this + general * of_all


def gradients_and_output(model: STDiT3, call: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The output first, then the gradient of every trained weight."""
    model.zero_grad()
    out = call(**inputs)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    grads = [p.grad for p in model.parameters() if p.requires_grad]
    return [out.detach(), *(grad.clone() for grad in grads if grad is not None)]


def test_condition_frames_are_normed_twice_in_the_final_layer_and_only_there() -> None:
    """Found by undoing it: the frames that are noised do not change, the given ones do."""
    model, inputs = small_model(), batch()
    out = run(model, inputs, x_mask=GIVEN)
    forward = model.final_layer.forward
    model.final_layer.forward = lambda x, t, t0, mask: forward(x, t, None, None)
    once = run(model, inputs, x_mask=GIVEN)
    noised = GIVEN[:, None, :, None, None].expand_as(out)
    assert torch.equal(out[noised], once[noised])
    assert (out[~noised] - once[~noised]).abs().max() > 0.1


def test_only_row_0_of_height_and_width_counts() -> None:
    model, inputs = small_model(), batch(count=3)
    sizes = {"height": torch.tensor([256.0, 999.0, 1.0]), "width": torch.tensor([320.0, 7.0, 2.0])}
    assert torch.equal(run(model, inputs), run(model, inputs, **sizes))
    swapped = {name: size.flip(0) for name, size in sizes.items()}
    assert not torch.allclose(run(model, inputs), run(model, inputs, **swapped))


def test_text_is_packed_wherever_its_padding_stands() -> None:
    model, inputs = small_model(), batch()
    shifted = torch.zeros_like(inputs["y"])
    shifted[0, :, 2:4], shifted[1, :, 1:6] = inputs["y"][0, :, :2], inputs["y"][1, :, :5]
    mask = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    got = run(model, inputs, y=shifted, mask=mask)
    torch.testing.assert_close(got, run(model, inputs, mask=LENGTHS), rtol=1e-5, atol=1e-5)


def test_text_columns_that_no_caption_uses_are_not_projected() -> None:
    model, inputs = small_model(), batch()
    seen: list[tuple[int, ...]] = []
    model.y_embedder.y_proj.register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    run(model, inputs, mask=torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]))
    assert seen == [(2, 1, 3, 16)]


def test_a_caption_without_tokens_adds_the_projections_bias_only() -> None:
    model, inputs = small_model(), batch()
    mask = torch.tensor([[0] * 6, [1] * 6])
    out = run(model, inputs, mask=mask)
    assert out.isfinite().all()
    assert torch.equal(out[0], run(model, inputs, mask=mask, y=torch.randn(2, 1, 6, 16))[0])
    assert run(model, inputs, mask=torch.zeros(2, 6)).isfinite().all()


def test_a_dropped_caption_keeps_its_own_mask() -> None:
    model, inputs = small_model(class_dropout_prob=1.0), batch()
    null = model.y_embedder.y_embedding.expand_as(inputs["y"])
    want = run(model, inputs, y=null, mask=LENGTHS)
    assert torch.equal(run(model.train(), inputs, mask=LENGTHS), want)


def test_both_halves_of_guidance_share_masks_and_rates() -> None:
    model, inputs = small_model(), batch()
    null = model.y_embedder.y_embedding.expand_as(inputs["y"])
    doubled = {
        "x_BCTHW": inputs["x_BCTHW"].repeat(2, 1, 1, 1, 1),
        "timestep_B": inputs["timestep_B"].repeat(2),
        "y": torch.cat([inputs["y"], null]),
    }
    got = run(model, {**inputs, **doubled}, mask=LENGTHS, x_mask=GIVEN.repeat(2, 1))
    halves = [run(model, inputs, y=y, mask=LENGTHS, x_mask=GIVEN) for y in (inputs["y"], null)]
    torch.testing.assert_close(got, torch.cat(halves), rtol=1e-5, atol=1e-5)


def test_packed_text_of_a_cache_trains_no_caption_embedder() -> None:
    model, inputs = small_model(skip_y_embedder=True), batch()
    packed = torch.randn(1, 7, 32)
    model(**{**inputs, "y": packed, "mask": [2, 5]}).sum().backward()
    assert all(p.grad is None for p in model.y_embedder.parameters())
    assert model.blocks()[0].cross_attn.kv_linear.weight.grad is not None


@pytest.mark.long
def test_an_all_true_mask_costs_nothing_at_all() -> None:
    """The same operations run, one for one, as without a mask."""
    model, inputs = small_model(), batch()

    def operations(**changes: Any) -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            run(model, inputs, **changes)
        return [event.name for event in seen.events() if event.name.startswith("aten::")]

    looked = operations(x_mask=torch.ones(2, 4, dtype=torch.bool))
    plainly = operations()
    assert len(looked) - len(plainly) <= 8  # the look itself
    assert looked[-100:] == plainly[-100:]
