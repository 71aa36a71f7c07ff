"""config.json, which infer, evaluate and serve need, is whole at every moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.config import description
from trainer.config.load import RUN_CONFIG, load


def test_full_disk_at_a_later_start_keeps_the_file_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("demo")
    description.describe(config, tmp_path, ["train"])
    before = (tmp_path / RUN_CONFIG).read_bytes()
    assert json.loads(before)["argv"] == ["train"]

    def full(path: Path, text: str, **_: str) -> int:
        path.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        description.describe(config, tmp_path, ["train", "again"])
    assert (tmp_path / RUN_CONFIG).read_bytes() == before
    assert not list(tmp_path.glob(".*"))
