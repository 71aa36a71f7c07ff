"""What the tests of active tests have in common: a plan for lab nodes, and the marks of what they left."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import sys
from pathlib import Path

import pytest

from checks.facts import Active
from checks.finding import Verdict
from checks.runner import run_checks
from clusterctl.hostfile import read_hostfile
from clusterctl.nodes import Node
from clusterctl.preflight.active.plan import Plan
from clusterctl.preflight.active.run import EXIT_S
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.session_pool import SessionPool
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.checks import healthy
from tests.lab import Lab, LabNode

PORT = 29517


def hosts(lab: Lab) -> list[Node]:
    return read_hostfile(lab.hostfile)


def make_plan(lab: Lab, **fields: object) -> Plan:
    plain: dict[str, object] = {
        "nodes": tuple(lab.names), "device": "cpu", "devices": dict.fromkeys(lab.names, 1),
        "python": sys.executable, "port": PORT, "env": {"OMP_NUM_THREADS": "1"},
        "group_s": 20.0, "matmul_s": 1.0, "blocks": 4, "start_s": 120.0,
    }  # fmt: skip
    return Plan(**{**plain, **fields})  # type: ignore[arg-type]


def running(node: LabNode, word: str) -> list[int]:
    """Processes of a node whose command line holds `word`."""
    found = []
    for pid in node.processes():
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def is_listening(node: LabNode, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(3)
        return probe.connect_ex((node.address, port)) == 0


def gather(lab: Lab) -> contextlib.closing[SessionPool]:
    pool = SessionPool(Cluster(hosts(lab), ParamikoTransport(), width=8), exit_s=EXIT_S)
    pool.gather()
    assert pool.lost == {}
    return contextlib.closing(pool)


def addresses(lab: Lab) -> dict[str, str]:
    return {node.name: node.address for node in lab.nodes}


def run_in(node: LabNode, *lines: str) -> None:
    """Commands inside a node; the test is skipped where the kernel has no such thing."""
    for line in lines:
        done = node.exec(line.split())
        if done.returncode:
            pytest.skip(f"{line}: {done.stderr.strip()[:100]}")


def verdicts(active: Active) -> list[tuple[str, tuple[str, ...]]]:
    """What is not content, by the rules."""
    fleet = dataclasses.replace(healthy.fleet(), active=active)
    content = (Verdict.PASS, Verdict.SKIP)
    found = run_checks(fleet, only=["active"]).findings
    return [(one.id, one.nodes) for one in found if one.verdict not in content]
