"""TensorBoard's own reader finds each step once, whatever attempts were broken off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer.trackers.tensorboard_files import FOLDER, TensorBoard
from trainer.trackers.tracker import About


def start(run_dir: Path, after: int, told: list[str]) -> TensorBoard:
    return TensorBoard(told.append, About(run_dir, "a run", after, {"lr": 1}, {"world": 2}))


def test_steps_that_were_broken_off_are_not_shown_twice(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    told: list[str] = []
    first = start(tmp_path, 0, told)
    for step in range(1, 8):
        first.figures(step, {"loss": 1.0 / step})
    assert first.close(limit_s=60)
    second = start(tmp_path, 4, told)  # the checkpoint of step 4
    for step in range(5, 10):
        second.figures(step, {"loss": 10.0 / step})
    assert second.close(limit_s=60)
    assert told == []
    read = accumulator.EventAccumulator(str(tmp_path / FOLDER))
    read.Reload()
    found = [(event.step, event.value) for event in read.Scalars("loss")]
    expected = [*((step, 1.0 / step) for step in range(1, 5))]
    expected += [(step, 10.0 / step) for step in range(5, 10)]
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    assert "config/text_summary" in read.Tags()["tensors"]


def test_without_tensorboard_one_sentence_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    told: list[str] = []
    sink = start(tmp_path, 0, told)
    assert sink.close(limit_s=60)
    (said,) = told
    assert "TensorBoard is not installed: pip install tensorboard, or --tensorboard false" in said
