"""Expandable segments, unless the user says otherwise; clusterctl's launch says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.launch.environment import build
from trainer.allocator import use_expandable_segments


@pytest.mark.parametrize(
    "given",
    [{}, {"PYTORCH_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF": "roundup:1"}],
)
def test_ranks_of_torchrun_have_what_the_launcher_gives(given: dict[str, str]) -> None:
    found = dict(given)
    use_expandable_segments(found)
    launched = build(given, run_dir=Path("/runs/1")).values()
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    assert [found.get(name) for name in names] == [launched.get(name) for name in names]


def test_it_comes_before_torch() -> None:
    code = "import sys, trainer.allocator; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
