"""The form of attention for short sequences on the CPU says what scaled_dot_product_attention says."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from trainer.models.attention import calls, short
from trainer.models.attention.calls import attend
from trainer.models.attention.table import KERNELS

ALL = sorted({kernel for kernels in KERNELS.values() for kernel in kernels})


def parts(queries: int, keys: int, dtype=torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(queries + keys)
    shapes = [(2, 3, queries, 6), (2, 3, keys, 6), (2, 3, keys, 6)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def slow(q, k, v, keep):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if keep is None else keep[:, None, None, :]
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (8, 8), (40, 13), (3, 100)])
def test_values_and_gradients_are_the_same(queries, keys, masked):
    keep = torch.rand(2, keys) < 0.6 if masked else None
    if keep is not None:
        keep[:, 0] = True
    q, k, v = parts(queries, keys)
    with torch.no_grad():
        assert short.is_short(q, k, keep)
    target = torch.randn(2, 3, queries, 6, dtype=torch.float64)
    found = [attend(q, k, v, keep), slow(q, k, v, keep)]
    assert torch.allclose(*found, atol=1e-12)
    ours, theirs = (torch.autograd.grad((out * target).sum(), (q, k, v)) for out in found)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_heads_that_lie_apart_in_memory_are_taken_as_they_are():
    q, k, v = (part.detach().transpose(1, 2).contiguous().transpose(1, 2) for part in parts(8, 8))
    assert not q.is_contiguous()
    assert torch.allclose(attend(q, k, v), slow(q, k, v, None), atol=1e-12)


def test_a_caption_without_tokens_gives_zeros():
    keep = torch.tensor([[True, False], [False, False]])
    q, k, v = parts(4, 2)
    out = attend(q, k, v, keep)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert torch.allclose(out, slow(q, k, v, keep))


@pytest.mark.parametrize(
    ("keys", "dtype"), [(short.MOST_KEYS + 1, torch.float64), (8, torch.bfloat16)]
)
def test_long_sequences_and_half_precision_go_the_common_way(keys, dtype):
    q, k, v = parts(4, keys, dtype)
    assert not short.is_short(q, k, None)
    assert torch.equal(attend(q, k, v), slow(q, k, v, None))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kernel", ALL)
def test_torch_s_priorities_name_each_kernel_once(kernel, compiled, monkeypatch):
    """Dynamo's form of `sdpa_kernel` does not remove doubles; torch's list then has a sixth place."""
    orders = []
    plain = torch._C._set_sdp_priority_order

    def noted(order):
        orders.append(list(order))
        if len(order) == len(before):  # a longer one is written behind the list's end
            plain(order)

    def within(x):
        with sdpa_kernel(calls.backends(kernel), set_priority=True):
            return F.scaled_dot_product_attention(x, x, x)

    x, before = torch.randn(1, 1, 4, 8), torch._C._get_sdp_priority_order()
    monkeypatch.setattr(torch._C, "_set_sdp_priority_order", noted)
    torch._dynamo.reset()
    run = torch.compile(within, backend="aot_eager") if compiled else within
    torch.testing.assert_close(run(x), F.scaled_dot_product_attention(x, x, x))
    assert orders[0][0] == int(calls.backends(kernel)[0])
    assert all(sorted(order) == sorted(before) for order in orders)
