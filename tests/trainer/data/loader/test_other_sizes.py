"""A manifest that says other heights and widths than the files have: trained on, and told."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from tests.trainer.data.loader.test_loader import FAST, folder, plan_of  # noqa: F401 - a fixture
from trainer.data.loader.build_loader import build_loader
from trainer.data.plan.data_plan import Cursor
from trainer.runlog.output import LOG


def told(manifest: Path, caplog: pytest.LogCaptureFixture, epochs: int) -> list[str]:
    caplog.clear()
    loader = build_loader(plan_of(manifest), Cursor(), 0, 1, 1, FAST)
    try:
        batches = [batch for _ in range(epochs) for batch in loader]
    finally:
        loader.close()
    assert all(not batch.bad for batch in batches)
    return [record.getMessage() for record in caplog.records]


def resize(csv: Path, rows: int) -> None:
    """The first rows say 32x32; the files have 64x64."""
    head, *lines = csv.read_text().splitlines()
    place = head.split(",").index("height")
    changed = []
    for number, line in enumerate(lines):
        before, cells = line.rsplit(",", head.count(",") - place + 1)[0], line.split(",")
        assert before
        if number < rows:
            cells[place] = cells[place + 1] = "32"
        changed.append(",".join(cells))
    csv.write_text("\n".join([head, *changed]) + "\n")


@pytest.mark.long
def test_size_that_differs_from_the_file_is_told_once_and_trained_on(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, "trainer")
    monkeypatch.setattr(LOG, "propagate", True)  # a command of another test has set it up
    own = Path(shutil.copytree(folder, tmp_path / "set"))
    assert told(own, caplog, 1) == []
    resize(own / "digits.csv", 2)
    first = told(own, caplog, 2)
    assert 1 <= len(first) <= 2  # an epoch leaves some clips out
    assert first[0].startswith("warning: rank 0: ")
    assert "it is 64x64 (height x width), the manifest says 32x32; it is trained on" in first[0]
    assert "further ones" not in first[0]
    resize(own / "digits.csv", 42)
    every = told(own, caplog, 1)
    assert len(every) == 5
    assert every[-1].endswith("; further ones are not told")
