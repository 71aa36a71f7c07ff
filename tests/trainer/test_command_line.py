"""Without the training packages every command of the trainer says so in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.command_line import READER_GONE, missing_packages

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "trainer.train demo --dataset.data-path rows.csv",
    "trainer.infer demo --ckpt-path nowhere --prompt a",
    "trainer.bench demo",
    "trainer.evaluate digits",
    "trainer.pictures folder",
    "trainer.weights inspect folder",
    "trainer.data probe rows.csv out.csv",
    "trainer.data stats rows.csv demo",
    "trainer.data.digits --out folder",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_packages_are_one_sentence(tmp_path: Path, command: str) -> None:
    """-S leaves out site-packages, as in an interpreter that has only the standard library."""
    (tmp_path / "rows.csv").write_text("path,text\na.mp4,a\n")
    done = subprocess.run(
        [sys.executable, "-S", "-m", *command.split()],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert said.startswith("error: this Python has no ")
    assert said.endswith(sys.executable)
    assert "docs/guide/install.md" in hint


def test_pyav_is_asked_for_only_where_clips_are_read() -> None:
    """A machine with a card and without PyAV can be measured."""
    code = (
        "import runpy, sys; sys.modules['av'] = None; sys.argv = ['bench', '--help']; "
        "runpy.run_module('trainer.bench', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--search-batch-size" in done.stdout


def test_a_module_of_ours_that_is_missing_stays_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"trainer\.nothing"), missing_packages():
        __import__("trainer.nothing")


@pytest.mark.long
@pytest.mark.parametrize("words", ["config show demo", "config show demo --json"])
def test_a_closed_pipe_ends_a_command_without_a_traceback(words: str) -> None:
    """As with `| head -1`: what was printed is in Python's buffer until the end."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"trainer.{words.split()[0]}", *words.split()[1:]],
            cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


@pytest.mark.long
@pytest.mark.parametrize("words", ["config show demo", "config show demo --json"])
def test_a_full_disk_ends_a_command_with_a_sentence(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", f"trainer.{words.split()[0]}", *words.split()[1:]],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "error: what this prints: No space left on device\n",
    )
