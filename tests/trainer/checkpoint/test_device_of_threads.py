"""The saver's threads use their own rank's GPU: a thread begins on GPU 0."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint.saving import Rank, Together
from trainer.checkpoint import async_saver
from trainer.checkpoint.async_saver import Saver
from trainer.checkpoint.staging_buffer import StagingBuffer
from trainer.config.load import Config


class OnGPU(Rank):
    """A rank of GPU 3; its tensors are on the CPU."""

    device = torch.device("cuda", 3)


def test_each_thread_takes_its_rank_s_gpu_before_it_copies_or_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[tuple[str, Any]] = []

    def note(what: Any) -> None:
        did.append((threading.current_thread().name, what))

    def noted(plain: Any, what: str) -> Any:
        def call(*args: Any) -> Any:
            note(what)
            return plain(*args)

        return call

    monkeypatch.setattr(torch.cuda, "set_device", note)
    monkeypatch.setattr(StagingBuffer, "copy", noted(StagingBuffer.copy, "copy"))
    monkeypatch.setattr(async_saver, "write", noted(async_saver.write, "write"))
    saver = Saver(tmp_path, OnGPU(Together(1), 0), Config())  # type: ignore[arg-type]
    saver.prepare()
    saver.save(0, 1, {"w": torch.arange(1000.0)}, lambda: {"a.json": 1})
    (saved,) = saver.finish()
    assert saved.step == 1
    assert [what for name, what in did if name == "checkpoint memory"] == [OnGPU.device]
    own = [what for name, what in did if name == "checkpoint"]
    # one thread copies and writes this rank's part, one seals
    assert own == [OnGPU.device, "copy", "write", "write", OnGPU.device]
    assert {name for name, _ in did} == {"checkpoint memory", "checkpoint"}


def test_threads_of_a_cpu_run_ask_for_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    saver = Saver(tmp_path, Rank(Together(1), 0), Config())  # type: ignore[arg-type]
    saver.prepare()
    saver.save(0, 1, {"w": torch.arange(1000.0)}, lambda: {"a.json": 1})
    assert [saved.step for saved in saver.finish()] == [1]
    assert asked == []
