"""An exporter that serves, asked over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60.0  # a deadline for a loaded machine


@contextmanager
def exporting(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`clusterctl export --demo` and its address."""
    child = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "export", "--demo", "--listen", "127.0.0.1:0"],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)
        assert found, line
        yield child, found[1]
    finally:
        child.kill()
        child.communicate()


def get(url: str, host: str | None = None) -> str:
    headers = {} if host is None else {"Host": host}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return str(answer.read().decode())
