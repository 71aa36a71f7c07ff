"""Norm, clipping and AdamW over lists do what torch does one by one."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch import Tensor, nn

from trainer.engine.gradients import LocalSums, clip_in_place
from trainer.engine.listed_adamw import ListedAdamW
from trainer.optim.norms import square_sum

CPU = torch.device("cpu")


def tensors(seed: int = 1) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in ((3, 5), (7,), (1,), (4, 2, 2))]


def test_the_sum_of_squares_is_that_of_all_elements_and_leaves_out_empty_parts() -> None:
    every = [*tensors(), torch.empty(0, 4)]
    expected = sum(float(t.double().square().sum()) for t in every)
    found = square_sum(every, CPU)
    assert (found.shape, found.dtype) == (torch.Size([]), torch.float64)
    assert float(found) == pytest.approx(expected, rel=1e-6)
    assert float(square_sum([torch.empty(0)], CPU)) == 0.0


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e3])
def test_clipping_is_torch_s(limit: float) -> None:
    ours, theirs = tensors(), [nn.Parameter(torch.zeros_like(t)) for t in tensors()]
    for parameter, gradient in zip(theirs, tensors(), strict=True):
        parameter.grad = gradient
    norm = clip_in_place(ours, limit, CPU)
    expected = nn.utils.clip_grad_norm_(theirs, limit or math.inf)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    for mine, parameter in zip(ours, theirs, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-6, atol=0)
    if limit != 0.5:  # nothing to clip: not one bit changes
        assert all(torch.equal(a, b) for a, b in zip(ours, tensors(), strict=True))


def test_a_norm_that_is_no_number_stays_one() -> None:
    gradients = [torch.tensor([1.0, math.nan])]
    assert math.isnan(float(clip_in_place(gradients, 1.0, CPU)))
    gradients = [torch.tensor([1.0, math.inf])]
    assert math.isinf(float(clip_in_place(gradients, 1.0, CPU)))


def test_a_listed_update_is_torch_s_step_bit_by_bit() -> None:
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "fused": True}
    ours, theirs = tensors(), tensors()
    listed = ListedAdamW(ours, **options)  # type: ignore[arg-type]
    plain = torch.optim.AdamW(theirs, **options)  # type: ignore[arg-type]
    for step in range(5):
        gradients = tensors(10 + step)
        used = slice(None) if step else slice(0, 2)  # the others have none in the first step
        for parameter, gradient in list(zip(theirs, gradients, strict=True))[used]:
            parameter.grad = gradient.clone()
        plain.step()
        plain.zero_grad()
        listed.update(ours[used], gradients[used])
        for optimizer in (listed, plain):
            optimizer.param_groups[0]["lr"] *= 0.9  # a schedule's
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        left, right = listed.state[mine], plain.state[other]
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert [int(listed.state[p]["step"]) for p in ours] == [5, 5, 4, 4]
    listed.update([], [])


def test_summed_parameters_can_be_forgotten() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    sums, gone = LocalSums([parameter]), weakref.ref(parameter)
    with sums.taking():
        parameter.sum().backward()
    del parameter, sums
    gc.collect()
    assert gone() is None
