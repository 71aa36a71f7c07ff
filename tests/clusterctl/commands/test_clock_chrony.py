"""`clock` and `preflight` where a real chronyd of each node follows a server that tells the truth, or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.time_daemons import CAP_SYS_TIME, CHRONYD, SILENT, TimeDaemons

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHRONYD is None, reason="no chronyd here (tests/lab/install.sh)"),
]
GOOD, AHEAD, SILENCE, STEPPED, TWO = (f"node-{number}" for number in range(1, 6))
# Of the machine under all nodes; and how long a busy head takes to read its own clock.
OF_THE_HOST = "time.clocksource,time.log_ahead,time.skew"


@pytest.fixture(scope="module")
def nodes(module_lab) -> Lab:
    lab = module_lab(5)
    good, ahead, silent, stepped, two = (TimeDaemons(node) for node in lab.nodes)
    good.follow(0.0)
    ahead.follow(2.5)
    silent.follow(None)
    stepped.follow(0.0)
    two.follow(0.0)
    two.second_daemon("systemd-timesyn")
    deadline = time.monotonic() + 120
    for one in (good, ahead, stepped, two):
        one.wait_for_reach("377", deadline)
    silent.wait_for_reach("0", deadline)
    stepped.step_server(-1.5)
    ahead.wait_for_offset(2.5, deadline)
    stepped.wait_for_offset(-1.5, deadline)
    for one in (good, two):
        one.wait_for_calm(deadline)
    for one in (good, ahead, silent, stepped, two):
        (rights,) = one.rights()
        assert not rights >> CAP_SYS_TIME & 1  # the kernel would refuse to set the clock
    return lab


def clusterctl(nodes: Lab, state: Path, *words: str) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", *words, "--json", str(nodes.hostfile)],
        capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.long
def test_preflight_names_each_node_whose_time_is_wrong_and_no_other(
    nodes: Lab, tmp_path: Path
) -> None:
    code, report = clusterctl(
        nodes, tmp_path, "preflight", "--check", "time", "--skip", OF_THE_HOST
    )
    found = {
        (one["id"], one["verdict"], node): one["evidence"]
        for one in report["checks"]
        for node in one["nodes"]
        if one["verdict"] not in ("PASS", "SKIP")
    }
    assert set(found) == {
        ("time.sync", "FAIL", AHEAD),
        ("time.sync", "FAIL", SILENCE),
        ("time.sync", "FAIL", STEPPED),
        ("time.daemons", "FAIL", TWO),
        ("time.sources", "WARN", SILENCE),  # it asks another server than the others
    }, found
    assert found["time.sync", "FAIL", AHEAD].startswith("-2.5")
    assert "s from its source 127.0.0.1" in found["time.sync", "FAIL", AHEAD]
    assert found["time.sync", "FAIL", SILENCE].endswith(f"{SILENT} unreachable")
    assert found["time.sync", "FAIL", STEPPED].startswith("+1.5")
    assert "chronyd, systemd-timesyn" in found["time.daemons", "FAIL", TWO]
    assert (code, report["good_nodes"]) == (1, [GOOD])


@pytest.mark.long
def test_clock_tells_chrony_of_each_node_apart(nodes: Lab, tmp_path: Path) -> None:
    code, document = clusterctl(nodes, tmp_path, "clock")
    good, ahead, silent, stepped, two = document["nodes"]
    assert good["steered"] == "chrony: 127.0.0.1, stratum 3"
    assert good["sources"] == "1 (1 selected)"
    assert good["clock"]["daemons"] == ["chronyd"]
    assert ahead["clock"]["tracking"]["offset_s"] == pytest.approx(-2.5, abs=0.2)
    assert any("from its source 127.0.0.1" in flag for flag in ahead["flags"]), ahead["flags"]
    assert silent["steered"] == "chrony: nobody"
    assert any(f"not synchronised: {SILENT} unreachable" in flag for flag in silent["flags"])
    assert stepped["clock"]["tracking"]["offset_s"] == pytest.approx(1.5, abs=0.2)
    assert any("+1.5" in flag for flag in stepped["flags"]), stepped["flags"]
    assert any("2 time daemons run" in flag for flag in two["flags"]), two["flags"]
    # The clocks themselves agree: what is wrong is who they follow.
    apart = document["widest"]
    assert apart["apart_s"] <= max(0.005, apart["error_s"])
    assert code == 1
