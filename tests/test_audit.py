"""requirements/audit.sh: what it says where it can ask, and where it cannot."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.sources import ROOT

# A stand-in for pip-audit, which needs the real service: `$FOUND` is what it ends with.
AUDIT = "#!/bin/sh\necho asked: $*\nexit ${FOUND:-0}\n"


@pytest.fixture
def service() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def audit(folder: Path, service: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pip-audit").write_text(AUDIT)
    (folder / "pip-audit").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [ROOT / "requirements/audit.sh"],
        env={**os.environ, "PATH": path, "AUDIT_SERVICE": service, **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_without_the_service_it_is_skipped_with_a_word(tmp_path: Path) -> None:
    done = audit(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 0
    assert done.stdout.startswith("audit skipped, so nothing is known of new vulnerabilities: http")
    assert "does not answer from here" in done.stdout


@pytest.mark.long
def test_all_locked_files_are_asked_about(tmp_path: Path, service: str) -> None:
    done = audit(tmp_path, service)
    assert done.returncode == 0
    for words in (
        "lock-cuda.txt",
        "lock-cuda12.txt",
        "lock-sources.txt",
        "--require-hashes",
        f"{service}/v1/query",
    ):
        assert words in done.stdout
    assert "no vulnerability is known" in done.stdout


def test_what_it_finds_is_its_exit_code(tmp_path: Path, service: str) -> None:
    done = audit(tmp_path, service, FOUND="1")
    assert done.returncode == 1
    assert "no vulnerability" not in done.stdout
