"""Files of the dashboards: for their user alone, and not led elsewhere by others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from clusterctl.output import Output
from dashboards.export.serve import _write
from dashboards.recording.file_format import Appender


def test_recording_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Appender(tmp_path / "night.rec", 1 << 20).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "night.rec").stat().st_mode) == 0o600


def test_recording_does_not_go_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "night.rec").symlink_to(tmp_path / "made-by-us")
    with pytest.raises(OSError, match="symbolic links"):
        Appender(tmp_path / "night.rec", 1 << 20)
    assert not (tmp_path / "made-by-us").exists()


def test_metrics_are_written_beside_under_a_name_that_nobody_can_take(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "gpu.prom"
    (tmp_path / f".gpu.prom.{os.getpid()}").symlink_to(victim)
    _write(str(path), CollectorRegistry(), Output())
    assert victim.read_text() == "precious"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # node_exporter is another user
