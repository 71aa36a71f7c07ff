"""The verbs of `python -m trainer.data`, in a folder of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.data.__main__ import main


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`do("filter a.csv o.csv --min-frames 5")` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(line: str, *more: str) -> int:
        return main([*line.split(), *more])

    return run
