"""Products with epilogues: the matrices that the library is told of, and what follows a refusal."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.block import epilogues
from trainer.runlog.output import LOG

R, K, C = 10, 6, 4


def column_major(
    product: epilogues._Product,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor,
    kept: Tensor | None = None,
) -> None:
    """What cuBLASLt documents of a product, on matrices without gaps in column-major order."""

    def matrix(values: Tensor, lines: int, columns: int) -> Tensor:
        assert values.is_contiguous()
        return values.view(-1).view(columns, lines).T

    m, n, k = product.m, product.n, product.k
    first, second = product.transposes
    of_a = matrix(a, k, m).T if first else matrix(a, m, k)
    of_b = matrix(b, n, k).T if second else matrix(b, k, n)
    result = of_a @ of_b
    to = matrix(out, m, n)
    if product.epilogue == 512:  # BGRADB: the bias is as long as D has columns
        bias.copy_(of_b.sum(0))
    elif product.epilogue == 32 | 128 | 4:  # GELU_AUX_BIAS
        assert kept is not None
        result = result + bias[:, None]
        matrix(kept, m, n).copy_(result)
        result = F.gelu(result, approximate="tanh")
    elif product.epilogue == 64 | 128 | 16:  # DGELU_BGRAD
        assert kept is not None
        hidden = matrix(kept, m, n).contiguous()
        result = torch.ops.aten.gelu_backward(result.contiguous(), hidden, approximate="tanh")
        bias.copy_(result.sum(1))
    else:
        raise AssertionError(product.epilogue)
    to.copy_(result)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogues, "_run", column_major)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("apart", [False, True])
def test_each_product_is_that_of_the_formulas(apart: bool) -> None:
    torch.manual_seed(0)

    def matrix(*shape: int) -> Tensor:  # also one whose rows do not follow each other
        return random(*shape[::-1]).T if apart else random(*shape)

    x, weight, bias = matrix(R, K), matrix(C, K), random(C)
    out, hidden = epilogues._gelu_linear(x, weight, bias)
    torch.testing.assert_close(hidden, F.linear(x, weight, bias))
    torch.testing.assert_close(out, F.gelu(hidden, approximate="tanh"))

    d_out, back = matrix(R, K), matrix(K, C)
    hidden = random(R, C)
    d_hidden, d_bias = epilogues._gelu_backward(d_out, back, hidden)
    wanted, _, wanted_bias = epilogues.gelu_backward(d_out, back, hidden)
    torch.testing.assert_close(d_hidden, wanted)
    torch.testing.assert_close(d_bias, wanted_bias)

    d_weight, d_bias = epilogues._weight_gradient(matrix(R, C), x)
    d_out = matrix(R, C)
    d_weight, d_bias = epilogues._weight_gradient(d_out, x)
    torch.testing.assert_close(d_weight, d_out.T @ x)
    torch.testing.assert_close(d_bias, d_out.sum(0))


@pytest.mark.usefixtures("library")
def test_equal_results_pass_the_comparison_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    assert epilogues._difference(cpu, torch.float32) < 1e-5

    def wrong(*args: Tensor, **more: Tensor) -> None:
        column_major(*args, **more)  # type: ignore[arg-type]
        args[3].mul_(1.1)

    monkeypatch.setattr(epilogues, "_run", wrong)
    assert epilogues._difference(cpu, torch.float32) > epilogues._TOLERANCE
    monkeypatch.setattr(epilogues, "_run", lambda *args: args[3].fill_(torch.nan))
    assert not epilogues._difference(cpu, torch.float32) <= epilogues._TOLERANCE


class OnACard:
    """As far as `is_right` looks at a tensor."""

    is_cuda, dtype, device = True, torch.bfloat16, torch.device("cuda", 0)


@pytest.mark.parametrize("why", ["refused", "missing", "wrong", "right"])
def test_a_library_that_refuses_or_computes_something_else_is_not_used(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def difference(*_: object) -> float:
        asked.append(why)
        if why == "refused":
            raise epilogues._Refused("cublasLtMatmul returns 15")
        if why == "missing":
            raise AttributeError("undefined symbol: cublasLtCreate")
        return 0.5 if why == "wrong" else 0.001

    monkeypatch.setattr(epilogues, "_difference", difference)
    monkeypatch.setattr(epilogues, "_checked", {})
    monkeypatch.setattr(LOG, "propagate", True)  # a command of another test has set it up
    with caplog.at_level(logging.WARNING):
        found = [epilogues.is_right(OnACard()) for _ in range(2)]  # type: ignore[arg-type]
    assert found == [why == "right"] * 2
    assert asked == [why]
    assert ("without cuBLASLt's epilogues on cuda:0" in caplog.text) == (why != "right")


def test_a_deterministic_run_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogues, "_checked", {0: True})
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not epilogues.is_right(OnACard())  # type: ignore[arg-type]
    assert not epilogues.is_right(torch.zeros(1))
