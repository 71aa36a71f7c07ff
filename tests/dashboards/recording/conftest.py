"""A recording of 150 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards.recording.player import rounds, write


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("record") / "night", rounds())
