"""Where our kernel over frames runs; its numbers: tests/gpu/interpreted.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

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
