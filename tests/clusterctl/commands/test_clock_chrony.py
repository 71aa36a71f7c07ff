"""`clusterctl clock` where a real chronyd of each node follows a server that tells the truth, or not.

chronyd runs with -x: it measures and never touches the machine's clock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.lab import Lab, LabNode
from tests.lab.cluster import HERE

CHRONYD = shutil.which("chronyd", path="/usr/sbin:/usr/bin:/sbin")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(CHRONYD is None, reason="no chronyd here (tests/lab/install.sh)"),
]
CONFIG = """
server {address} iburst minpoll -2 maxpoll -2
cmdport 0
pidfile /run/chronyd.pid
user root
"""


def background(node: LabNode, command: str) -> None:
    done = node.exec(["sh", "-c", f"setsid {command} </dev/null >/run/chrony.log 2>&1 &"])
    assert done.returncode == 0, done.stderr


def follow(node: LabNode, address: str, shift_s: float | None) -> None:
    """Start the node's chronyd; `shift_s` None is a server that never answers."""
    boot = node.directory / "boot_id"  # nodes of one boot id are one machine with one clock
    boot.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, node.name)}\n")
    node.bind(boot, "/proc/sys/kernel/random/boot_id")
    if shift_s is not None:
        background(node, f"{sys.executable} -I -S {HERE / 'ntp_server.py'} {address} {shift_s}")
    config = node.directory / "chrony.conf"
    config.write_text(CONFIG.format(address=address))
    background(node, f"{CHRONYD} -x -d -f {config}")


def wait_for_sources(node: LabNode, reach: str, deadline: float) -> None:
    said = ""
    while time.monotonic() < deadline:
        said = node.exec(["chronyc", "-c", "-n", "sources"]).stdout
        if said.count(",") >= 9 and said.split(",")[5] == reach:
            return
        time.sleep(0.1)
    log = node.exec(["cat", "/run/chrony.log"]).stdout
    pytest.fail(f"{node.name}: no source with reach {reach}: {said!r}\n{log}")


@pytest.fixture(scope="module")
def nodes(module_lab) -> Lab:
    lab = module_lab(3)
    good, ahead, silent = lab.nodes
    follow(good, "127.0.0.1", 0.0)
    follow(ahead, "127.0.0.1", 2.5)
    follow(silent, "127.0.0.9", None)
    deadline = time.monotonic() + 60
    wait_for_sources(good, "377", deadline)
    wait_for_sources(ahead, "377", deadline)
    wait_for_sources(silent, "0", deadline)
    return lab


def test_chrony_of_each_node_is_told_apart(nodes: Lab, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", "clock", "--json", str(nodes.hostfile)],
        capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    good, ahead, silent = document["nodes"]
    assert good["steered"] == "chrony: 127.0.0.1, stratum 3"
    assert good["sources"] == "1 (1 selected)"
    assert good["clock"]["daemons"] == ["chronyd"]
    tracking = ahead["clock"]["tracking"]
    assert tracking["offset_s"] == pytest.approx(-2.5, abs=0.2)  # the server is ahead of the node
    assert any("from its source 127.0.0.1" in flag for flag in ahead["flags"]), ahead["flags"]
    assert silent["steered"] == "chrony: nobody"
    assert any("not synchronised: 127.0.0.9 unreachable" in flag for flag in silent["flags"])
    # The clocks themselves agree: what is wrong is who they follow.
    apart = document["widest"]
    assert apart["apart_s"] <= max(0.005, apart["error_s"])
    assert done.returncode == 1
