"""An ordinary user launches, logs out and comes back: logind has removed what it removes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]
NOBODY = 65534
# Only the mounts are of another machine: one with logind, on which this user has logged in.
MACHINE = """
set -e
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/users /run/sshd
install -d -o {user} -g {user} -m 700 /run/user/{user}
exec {python} -m tests.as_user {user} {base} {repo} -- {python} -m pytest -q -p no:cacheprovider \
  --timeout 120 --basetemp {folder}/tests tests/clusterctl/commands/runs/ordinary_user.py
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_run_outlives_the_logout_of_its_user() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # folders of pytest are root's alone
        os.chown(folder, NOBODY, NOBODY)
        words = {"python": sys.executable, "base": sys.base_prefix, "repo": REPO, "folder": folder}
        quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
        script = MACHINE.format(user=NOBODY, **quoted)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
            capture_output=True, text=True, timeout=170, cwd=REPO,
            env={**os.environ, "HOME": folder, "TMPDIR": folder},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
