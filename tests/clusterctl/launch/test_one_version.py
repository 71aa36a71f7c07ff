"""A supervisor after an upgrade in place: it imports and sends what was there at its start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import clusterctl.launch.head.supervisor
from pathlib import Path
from clusterctl.launch.head.one_version import keep_code
from clusterctl.remote import payload

home = Path(sys.argv[1])
verbs = ("agent", "reap", "launch.checkpoints", "launch.warm", "stacks", "census")
assert clusterctl.__file__.startswith(sys.argv[1]), clusterctl.__file__
payload.source("agent")  # the first attempt has begun
if sys.argv[2] == "keep":
    keep_code()
for path in [*home.rglob("*.py"), *home.rglob("*.html")]:  # moved, and what is left is new
    path.unlink() if "launch" in path.parts else path.write_text("raise SystemExit('upgraded')")
for verb in verbs:
    text = payload.source(verb, nvml=verb == "stacks")
    assert b"upgraded" not in text
from checks.runner import all_checks
from clusterctl.exclude.entries import read
from clusterctl.stacks.files import template
from clusterctl.stacks.wait_sites import read_sites
assert len(all_checks()) > 80
assert "upgraded" not in template()
sites = home / "sites.toml"
sites.touch()
assert read_sites(sites) == []
print("good")
"""


@pytest.mark.long
def test_what_is_needed_later_is_read_at_the_start(tmp_path: Path) -> None:
    for word in ("no", "keep"):
        for name in ("checks", "clusterctl", "trainer"):
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPO / name, tmp_path / word / name, ignore=leave)
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / word), word]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert (done.stdout == "good\n") is (word == "keep"), done.stderr
