"""What does not fit is said in one sentence, before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.models.stdit_cases import batch, run, small_model
from trainer.errors import ModelInputError

BAD: list[tuple[dict[str, Any], str]] = [
    ({"x_BCTHW": torch.zeros(2, 3, 6, 6)}, "latents must be floating point [B, 3, T, H, W]; not float32 [2, 3, 6, 6]"),
    ({"x_BCTHW": torch.zeros(2, 4, 4, 6, 6)}, "not float32 [2, 4, 4, 6, 6]"),
    ({"x_BCTHW": torch.zeros(2, 3, 4, 6, 6, dtype=torch.int64)}, "not int64 [2, 3, 4, 6, 6]"),
    ({"x_BCTHW": torch.zeros(2, 3, 0, 6, 6)}, "latents are empty"),
    ({"timestep_B": torch.zeros(3)}, "timestep must be [2], one per clip; not float32 [3]"),
    ({"timestep_B": torch.tensor(1.0)}, "timestep must be [2]"),
    ({"fps": None}, "STDiT3 needs fps of the clips"),
    ({"height": None}, "STDiT3 needs height of the clips"),
    ({"width": torch.zeros(3)}, "width must be [2], one per clip; not float32 [3]"),
    ({"y": torch.zeros(2, 6, 16)}, "text features must be [2, 1, L, 16]; not float32 [2, 6, 16]"),
    ({"y": torch.zeros(2, 1, 6, 12)}, "text features must be [2, 1, L, 16]"),
    ({"y": torch.zeros(1, 1, 6, 16)}, "text features must be [2, 1, L, 16]"),
    ({"y": torch.zeros(2, 1, 6, 16, dtype=torch.int64)}, "text features must be floating point"),
    ({"y": torch.zeros(2, 1, 9, 16)}, "captions have 9 tokens, the model takes 1 to 6"),
    ({"y": torch.zeros(2, 1, 0, 16)}, "captions have 0 tokens"),
    ({"mask": torch.ones(2, 5)}, "the text mask must be [2, 6], or fewer rows that repeat; not float32 [2, 5]"),
    ({"mask": torch.ones(3, 6)}, "the text mask must be [2, 6]"),
    ({"mask": torch.ones(6)}, "the text mask must be [2, 6]"),
    ({"x_mask": torch.ones(2, 5, dtype=torch.bool)}, "x_mask must be bool [2, 4], one entry per frame; not bool [2, 5]"),
    ({"x_mask": torch.ones(1, 4, dtype=torch.bool)}, "x_mask must be bool [2, 4]"),
    ({"x_mask": torch.ones(2, 4)}, "x_mask must be bool [2, 4], one entry per frame; not float32 [2, 4]"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelInputError) as error:
        run(small_model(), batch(), **changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_packed_text_must_add_up() -> None:
    model, inputs = small_model(skip_y_embedder=True), batch()
    for y, mask, sentence in [
        (torch.zeros(1, 6, 32), [2, 5], "packed text has 6 tokens, its lengths"),
        (torch.zeros(1, 6, 32), [6], "for a batch of 2"),
        (torch.zeros(1, 6, 32), None, "its lengths [] are for a batch of 2"),
        (torch.zeros(1, 6, 16), [3, 3], "packed text must be [1, tokens, 32]"),
    ]:
        with pytest.raises(ModelInputError) as error:
            run(model, inputs, y=y, mask=mask)
        assert sentence in str(error.value)
