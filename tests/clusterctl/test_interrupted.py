"""Ctrl-C while modules are imported, which takes longest of all that a short command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"


@pytest.mark.parametrize("module", ["click", "paramiko"])
def test_ctrl_c_during_an_import_is_a_word_and_code_130(tmp_path: Path, module: str) -> None:
    """A module that is interrupted by a real signal while it is imported stands in for its own."""
    (tmp_path / f"{module}.py").write_text(INTERRUPTED)
    (tmp_path / "nodes.txt").write_text("n1 host=127.0.0.1 port=1\n")
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", "run", "true", "nodes.txt", "--color", "always"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "interrupted"), done.stderr
