"""`preflight --active` as it is typed, on eight nodes with everything: healthy again and again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.clusterctl.preflight.active.nodes import run_in, running
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(module_lab) -> Lab:
    made = module_lab(8)
    (made.directory / "shared").mkdir()
    return made


def preflight(lab: Lab, *args: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", "preflight", "--active", "--yes", "--json", "--device", "cpu",
         "--check", "active", "--env", "OMP_NUM_THREADS=1", "--shared", str(lab.directory / "shared"),
         "--patience", "30", *args, str(lab.hostfile)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def findings(report: dict) -> list[tuple[str, str, list[str]]]:
    quiet = ("PASS", "SKIP")
    return [
        (x["verdict"], x["id"], x["nodes"]) for x in report["checks"] if x["verdict"] not in quiet
    ]


def test_five_healthy_runs_have_no_finding_and_leave_nothing(lab: Lab) -> None:
    for _ in range(5):
        report = preflight(lab)
        assert findings(report) == []
        assert len(report["active"]["speeds"]) == 8
        assert not list((lab.directory / "shared").iterdir())
        assert not any(running(node, "active_rank") for node in lab.nodes)


def test_four_faults_at_once_are_all_named_and_nothing_else(lab: Lab) -> None:
    n2, n4, n6, n7 = (lab.nodes[at] for at in (1, 3, 5, 6))
    shared = lab.directory / "shared"
    run_in(n2, "ip rule add pref 10 ipproto tcp sport 29500 blackhole")
    run_in(n4, "tc qdisc add dev eth0 root tbf rate 20mbit burst 64kb latency 400ms")
    run_in(n6, f"mount -t tmpfs none {shared}")
    run_in(n7, f"ip route add blackhole {lab.nodes[7].address}/32")
    try:
        report = preflight(lab)
    finally:
        n2.exec(
            ["ip", "rule", "del", "pref", "10", "ipproto", "tcp", "sport", "29500", "blackhole"]
        )
        n4.exec(["tc", "qdisc", "del", "dev", "eth0", "root"])
        n6.exec(["umount", str(shared)])
        n7.exec(["ip", "route", "del", "blackhole", f"{lab.nodes[7].address}/32"])
    found = {(verdict, id, *nodes) for verdict, id, nodes in findings(report)}
    assert found == {
        ("FAIL", "active.port", "node-2"),
        ("FAIL", "active.allreduce", "node-4"),
        ("FAIL", "active.token", "node-6"),
        ("UNKNOWN", "active.read", "node-6"),  # it sees nothing to read
        ("FAIL", "active.allreduce", "node-7", "node-8"),
        ("FAIL", "active.port", "node-8"),  # the cut link, seen from the port of node-7
    }
