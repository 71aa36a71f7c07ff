"""`clusterctl export`: where it listens, who may ask, and `--once`."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.errors import UsageError
from dashboards.export.serve import address
from tests.dashboards.export.scraped import scraped, value
from tests.dashboards.export.serving import WAIT_S, exporting, get
from tests.dashboards.feeds.test_feeds import until


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9839", ("127.0.0.1", 9839)),
        ("9839", ("127.0.0.1", 9839)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:9", ("::1", 9)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses_are_loopback_unless_said(text: str, parsed: tuple[str, int]) -> None:
    assert address(text) == parsed


@pytest.mark.parametrize("text", ["", "here", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        address(text)


@pytest.mark.long
def test_once_writes_the_file_whole_and_tells_of_silent_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clusterctl.prom"
    path.write_text("old\n")
    args = ["export", "--demo", "--once"]
    assert run([*args, str(path)]) == 3  # a node of the demo does not answer
    assert value(scraped(path.read_text()), "node_up", node="ml-64-node-001") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["clusterctl.prom"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert "of 24 nodes give no readings" in capsys.readouterr().err
    assert run([*args, str(tmp_path / "no" / "x.prom")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.long
def test_page_of_another_site_cannot_read_the_metrics(tmp_path: Path) -> None:
    """Its own name may point to this machine; the request then says that name."""
    with exporting(tmp_path) as (_, where):
        port = where.rpartition(":")[2]
        for name in (where, f"localhost:{port}", "10.1.2.3"):
            assert "clusterctl_build_info" in get(f"http://{where}/metrics", name)
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"http://{where}/metrics", name)
            assert refused.value.code == 403
            assert "its own name" in refused.value.read().decode()


@pytest.mark.long
def test_who_asks_and_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    with exporting(tmp_path) as (_, where):
        host, port = where.split(":")
        with socket.create_connection((host, int(port))) as mute:
            mute.send(b"GET /metrics HT")
            assert "clusterctl_build_info" in get(f"http://{where}/metrics")


@pytest.mark.long
def test_serves_on_this_machine_until_it_is_told_to_end(tmp_path: Path) -> None:
    with exporting(tmp_path) as (child, where):
        until(lambda: "clusterctl_gpu_power_watts{" in get(f"http://{where}/metrics"), WAIT_S)
        taken = run(["export", "--demo", "--listen", where])
        assert taken == 2
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=WAIT_S)
        assert (child.returncode, out, err) == (0, "", "")
