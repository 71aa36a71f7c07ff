"""config.json, which infer, evaluate and serve need, is whole at every moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.config import description, sources
from trainer.config.load import RUN_CONFIG, load


@pytest.mark.parametrize("name", [RUN_CONFIG, sources.FILE])
def test_full_disk_at_a_later_start_keeps_the_file_of_an_earlier_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("demo")
    description.describe(config, tmp_path, ["train"])
    before = (tmp_path / name).read_bytes()
    assert json.loads((tmp_path / RUN_CONFIG).read_bytes())["argv"] == ["train"]

    def full(path: Path, text: str, **_: str) -> int:
        path.write_bytes(text.encode()[:10] if name in path.name else text.encode())
        if name in path.name:
            raise OSError(28, "No space left on device", str(path))
        return len(text)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        description.describe(config, tmp_path, ["train", "again"])
    assert (tmp_path / name).read_bytes() == before
    assert not list(tmp_path.glob(".*"))
