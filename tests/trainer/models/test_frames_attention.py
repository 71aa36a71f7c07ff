"""Where our kernel over frames runs; its numbers: tests/gpu/interpreted.py."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.models import activation_checkpointing
from trainer.models.attention import frames
from trainer.models.compiling import compile_each

H100, L40 = 232_448, 101_376  # bytes of shared memory for a block of threads


def queries(count: int, dtype: torch.dtype, width: int = 72) -> Any:
    """As of a tensor on a GPU."""
    device = SimpleNamespace(index=0)
    return SimpleNamespace(shape=(2, count, 6, 4, width), dtype=dtype, is_cuda=True, device=device)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(frames, "_HAS_TRITON", True)
    card = SimpleNamespace(shared_memory_per_block_optin=H100)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    return card


@pytest.mark.parametrize(
    ("count", "dtype", "width", "usable"),
    [
        (1, torch.bfloat16, 72, True),
        (120, torch.float16, 72, True),
        (128, torch.bfloat16, 128, True),
        (129, torch.bfloat16, 72, False),
        (15, torch.bfloat16, 136, False),
        (15, torch.bfloat16, 12, False),
        (15, torch.float32, 72, False),
        (15, torch.float64, 72, False),
    ],
)
@pytest.mark.usefixtures("card")
def test_half_precision_and_rows_that_fit_a_block(
    count: int, dtype: torch.dtype, width: int, usable: bool
) -> None:
    assert frames.is_usable(queries(count, dtype, width)) is usable


def test_many_frames_need_a_card_with_enough_shared_memory(card: Any) -> None:
    card.shared_memory_per_block_optin = L40
    assert frames.is_usable(queries(64, torch.bfloat16))
    assert not frames.is_usable(queries(65, torch.bfloat16))


@pytest.mark.long
@pytest.mark.usefixtures("card")
def test_the_card_is_a_constant_of_a_compiled_block() -> None:
    torch._dynamo.reset()
    compile_each([])

    @torch.compile(backend="eager", fullgraph=True)
    def asked(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if frames.has_shared_memory(0) else x - 1

    assert asked(torch.zeros(1)).item() == 1


def test_without_triton_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_HAS_TRITON", False)
    assert not frames.is_usable(queries(15, torch.bfloat16))


def test_a_launch_is_on_the_gpu_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, which a CPU build of torch lacks, only notes here when it is called."""
    did: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *_, **__: did.append("launch")

    def jit(function: Any = None, **_: Any) -> Any:
        return Kernel() if function is not None else lambda _: Kernel()

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Any:
        did.append(tensor)
        yield
        did.append("before")

    language = ModuleType("triton.language")
    language.constexpr = int  # type: ignore[attr-defined]
    triton: Any = ModuleType("triton")
    triton.jit, triton.language = jit, language
    triton.cdiv, triton.next_power_of_2 = (lambda a, b: -(-a // b)), (lambda n: n)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    spec = importlib.util.find_spec("trainer.models.attention.frames_kernels")
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)  # not the one that others import
    spec.loader.exec_module(kernels)
    q = torch.zeros(2, 4, 3, 2, 16)
    kernels.forward(q, q, q)
    kernels.backward(q, q, q, q)
    assert did[1:3] == did[4:6] == ["launch", "before"]
    assert did[0] is q
    assert did[3] is q
    assert len(did) == 6


def test_the_prediction_knows_up_to_which_length_norms_happen_in_registers() -> None:
    assert activation_checkpointing._MOST_PREPARED == frames.MOST_PREPARED
