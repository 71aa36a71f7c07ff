"""Matrix products that do what follows them before they write: bias and GELU, GELU's gradient, and
the sum of a gradient's rows. One call of cuBLASLt each, through the library that torch has loaded.

torch offers none of these with what the backward pass needs. https://docs.nvidia.com/cuda/cublas,
cublasLtEpilogue_t: GELU_AUX_BIAS keeps GELU's input, DGELU_BGRAD multiplies by the slope there and
sums up for the bias, BGRADB sums up the second matrix. Matrices are column-major there: a tensor
[R, C] is its transpose [C, R] for it.

The first use on a card compares each with torch's own operations; where one differs, or the library
refuses it, all products are torch's, and a warning says so.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.block import rows

# R rows · K width of an input · C width of an output
LOG = logging.getLogger(__name__)
_GELU_AUX_BIAS, _DGELU_BGRAD, _BGRADB = 32 | 128 | 4, 64 | 128 | 16, 512
_TRANSPOSES_A, _TRANSPOSES_B, _EPILOGUE, _BIAS = 3, 4, 7, 8
_AUXILIARY, _AUXILIARY_LEAD = 11, 12
_MOST_WORKSPACE = 1
_COMPUTE_FP32, _FP32 = 68, 0
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
WORKSPACE = 32 << 20  # bytes, as torch takes for a Hopper card
_TOLERANCE = 0.02  # of the largest value: a bf16 product of 64 values is within 0.008


def gelu_linear(x_RK: Tensor, weight_CK: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    """gelu(h) in the tanh form, and h = linear(x), each [R, C]."""
    if is_right(x_RK):
        return _gelu_linear(x_RK, weight_CK, bias_C)
    hidden = F.linear(x_RK, weight_CK, bias_C)
    return F.gelu(hidden, approximate="tanh"), hidden


def gelu_backward(
    d_out_RK: Tensor, weight_KC: Tensor, hidden_RC: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Behind the product with `weight`: gradients of GELU's input [R, C] and of the bias before it
    [C], and GELU's output again [R, C]."""
    if is_right(d_out_RK):
        d_hidden, d_bias = _gelu_backward(d_out_RK, weight_KC, hidden_RC)
        return d_hidden, F.gelu(hidden_RC, approximate="tanh"), d_bias
    d_hidden, _, out, d_bias = rows.gelu_backward(hidden_RC, d_out_RK @ weight_KC)
    return d_hidden, out, d_bias


def weight_gradient(d_out_RC: Tensor, x_RK: Tensor) -> tuple[Tensor, Tensor]:
    """Of a linear layer: gradients of weight [C, K] and bias [C]."""
    if is_right(d_out_RC):
        return _weight_gradient(d_out_RC, x_RK)
    return d_out_RC.mT @ x_RK, d_out_RC.sum(0)


_checked: dict[int, bool] = {}


def is_right(x: Tensor) -> bool:
    """Whether these products are to be used on the device of `x`; found out once for each."""
    if not x.is_cuda or x.dtype not in _TYPES or torch.are_deterministic_algorithms_enabled():
        return False  # how these sum up is not documented
    device = x.device.index
    if device not in _checked:
        _checked[device] = False  # what is compared below uses torch's own
        try:
            difference = _difference(x.device, x.dtype)
            why = "" if difference <= _TOLERANCE else f"they differ by {difference:.1e}"
        except (_Refused, AttributeError) as error:
            why = str(error)
        _checked[device] = not why
        if why:
            LOG.warning(f"products without cuBLASLt's epilogues on cuda:{device}: {why}")
    return _checked[device]


@torch.no_grad()
def _difference(device: torch.device, dtype: torch.dtype) -> float:
    """From torch's operations, of the largest value: the worst of all results, NaN is worst."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x, weight, bias, d_out = random(96, 64), random(48, 64) / 8, random(48), random(96, 64)
    worst = torch.zeros(()).to(device)
    for call, inputs in (
        (("gelu_linear"), (x, weight, bias)),
        (("gelu_backward"), (d_out, random(64, 48) / 8, random(96, 48))),
        (("weight_gradient"), (random(96, 48), x)),
    ):
        wanted = globals()[call](*inputs)
        found = globals()[f"_{call}"](*inputs)
        wanted = (wanted[0], wanted[2]) if call == "gelu_backward" else wanted
        for one, other in zip(found, wanted, strict=True):
            apart = (one.float() - other.float()).abs().max() / other.float().abs().max()
            torch.maximum(worst, apart, out=worst)
    return float(worst)


class _Refused(RuntimeError):
    """The library has no such product."""


@dataclass(frozen=True, slots=True)
class _Product:
    """D [m, n] = op(A) op(B), column-major, without gaps."""

    m: int
    n: int
    k: int
    transposes: tuple[bool, bool]
    epilogue: int
    dtype: torch.dtype
    device: int


@dataclass(slots=True)
class _Plan:
    """What the library needs for a product, made once."""

    operation: Any
    layouts: tuple[Any, Any, Any]
    algorithm: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_plans: dict[_Product, _Plan] = {}
_handles: dict[int, Any] = {}
_rooms: dict[tuple[int, int], Tensor] = {}  # workspaces, by device and stream
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


def _library() -> Any:
    """torch loads cuBLAS so that all of the process can see it."""
    return ctypes.CDLL(None)


def _call(name: str, *args: Any) -> None:
    status = getattr(_library(), name)(*args)
    if status:
        raise _Refused(f"{name} returns {status}")


def _set(operation: Any, what: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _call("cublasLtMatmulDescSetAttribute", operation, what, ctypes.byref(value), size)


def _plan(product: _Product) -> _Plan:
    kind = _TYPES[product.dtype]
    if product.device not in _handles:
        _handles[product.device] = handle = ctypes.c_void_p()
        _call("cublasLtCreate", ctypes.byref(handle))
    operation = ctypes.c_void_p()
    _call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_FP32, _FP32)
    for what, transposes in zip((_TRANSPOSES_A, _TRANSPOSES_B), product.transposes, strict=True):
        _set(operation, what, ctypes.c_int32(transposes))
    _set(operation, _EPILOGUE, ctypes.c_uint32(product.epilogue))
    # Their alignment is read when the algorithm is chosen; each call names the real ones.
    _set(operation, _BIAS, ctypes.c_void_p(256))
    if product.epilogue & 128:
        _set(operation, _AUXILIARY, ctypes.c_void_p(256))
        _set(operation, _AUXILIARY_LEAD, ctypes.c_int64(product.m))
    first, second = product.transposes
    sizes = (
        (product.k, product.m) if first else (product.m, product.k),
        (product.n, product.k) if second else (product.k, product.n),
        (product.m, product.n),
    )
    layouts = []
    for lines, columns in sizes:
        layout = ctypes.c_void_p()
        size = (ctypes.c_uint64(lines), ctypes.c_uint64(columns), ctypes.c_int64(lines))
        _call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind, *size)
        layouts.append(layout)
    preference, room = ctypes.c_void_p(), ctypes.c_size_t(WORKSPACE)
    _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    _call(
        "cublasLtMatmulPreferenceSetAttribute",
        *(preference, _MOST_WORKSPACE, ctypes.byref(room), ctypes.c_size_t(8)),
    )
    found, count = _Found(), ctypes.c_int()
    a, b, d = layouts
    handle = _handles[product.device]
    _call(
        "cublasLtMatmulAlgoGetHeuristic",
        *(handle, operation, a, b, d, d, preference, 1, ctypes.byref(found), ctypes.byref(count)),
    )
    _call("cublasLtMatmulPreferenceDestroy", preference)
    if not count.value or found.state:
        raise _Refused(f"cuBLASLt has no algorithm for {product}")
    return _Plan(operation, (a, b, d), found)


def _run(
    product: _Product, a: Tensor, b: Tensor, out: Tensor, bias: Tensor, kept: Tensor | None = None
) -> None:
    plan = _plans.get(product)
    if plan is None:
        plan = _plans[product] = _plan(product)
    with torch.cuda.device(product.device), plan.lock:
        stream = torch.cuda.current_stream().cuda_stream
        place = product.device, stream
        if place not in _rooms:
            _rooms[place] = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
        _set(plan.operation, _BIAS, ctypes.c_void_p(bias.data_ptr()))
        if kept is not None:
            _set(plan.operation, _AUXILIARY, ctypes.c_void_p(kept.data_ptr()))
        of_a, of_b, of_out = plan.layouts
        to = ctypes.c_void_p(out.data_ptr())
        _call(
            "cublasLtMatmul",
            *(_handles[product.device], plan.operation, ctypes.byref(_ONE)),
            *(ctypes.c_void_p(a.data_ptr()), of_a, ctypes.c_void_p(b.data_ptr()), of_b),
            *(ctypes.byref(_ZERO), to, of_out, to, of_out, ctypes.byref(plan.algorithm)),
            *(ctypes.c_void_p(_rooms[place].data_ptr()), ctypes.c_size_t(WORKSPACE)),
            ctypes.c_void_p(stream),
        )


def _gelu_linear(x_RK: Tensor, weight_CK: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = x_RK.contiguous(), weight_CK.contiguous()
    (count, inner), width = x.shape, len(weight)
    out, hidden = (x.new_empty(count, width) for _ in range(2))
    sizes = (width, count, inner, (True, False))
    product = _Product(*sizes, _GELU_AUX_BIAS, x.dtype, x.device.index)
    _run(product, weight, x, out, bias_C.contiguous(), hidden)
    return out, hidden


def _gelu_backward(d_out_RK: Tensor, weight_KC: Tensor, hidden_RC: Tensor) -> tuple[Tensor, Tensor]:
    d_out, weight = d_out_RK.contiguous(), weight_KC.contiguous()
    (count, inner), width = d_out.shape, weight.shape[1]
    d_hidden, d_bias = d_out.new_empty(count, width), d_out.new_empty(width)
    sizes = (width, count, inner, (False, False))
    product = _Product(*sizes, _DGELU_BGRAD, d_out.dtype, d_out.device.index)
    _run(product, weight, d_out, d_hidden, d_bias, hidden_RC)
    return d_hidden, d_bias


def _weight_gradient(d_out_RC: Tensor, x_RK: Tensor) -> tuple[Tensor, Tensor]:
    d_out, x = d_out_RC.contiguous(), x_RK.contiguous()
    (count, width), inner = d_out.shape, x.shape[1]
    d_weight, d_bias = x.new_empty(width, inner), x.new_empty(width)
    sizes = (inner, width, count, (False, True))
    product = _Product(*sizes, _BGRADB, x.dtype, x.device.index)
    _run(product, x, d_out, d_weight, d_bias)
    return d_weight, d_bias
