"""dump-stacks over real sshds, on nodes of which two have a server of RAS's protocol."""

from __future__ import annotations

import base64
import json
import shlex
import sys

import pytest

from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.stacks.ras_answers import Comm, as_json
from tests.clusterctl.stacks.test_over_ssh import HERE, clusterctl, plant
from tests.lab import LabNode

pytestmark = pytest.mark.lab


def serve(node: LabNode, text: str) -> None:
    """On NCCL's own port, until the node stops."""
    packed = base64.b64encode(text.encode()).decode()
    server = f"{shlex.quote(sys.executable)} {HERE / 'ras_server.py'} 28028 /tmp/ras-answers"
    script = f"echo {packed} | base64 -d >/tmp/ras-answers; setsid {server} </dev/null >/tmp/ras-log 2>&1 &"  # fmt: skip
    assert node.exec(["sh", "-c", script]).returncode == 0
    wait_until(lambda: node.exec(["grep", "-q", "28028", "/tmp/ras-log"]).returncode == 0)


@pytest.mark.long
def test_rank_that_never_launched_is_named_over_ssh(module_lab) -> None:
    lab = module_lab(3)
    places = []
    for rank, node in enumerate(lab.nodes):
        plant(node, rank, 3, "ras", 0)
        found = node.exec(["pgrep", "-f", "[c]rew.py 0"])
        places.append((node.address, int(found.stdout.split()[0])))
    counts = [{"AllReduce": 31 - (rank == 1)} for rank in range(3)]
    text = as_json([Comm(0xABC, counts, places)])
    for node in lab.nodes[:2]:
        serve(node, text)
    words = ("--run", "ras", "--interval", "0.5", "--sites", str(HERE / "crew.toml"))
    done = clusterctl(lab, "dump-stacks", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1 (node-2) never launched AllReduce number 31 of communicator 0xabc (3 ranks)" in done.stdout  # fmt: skip
    assert "NCCL RAS answered on 2 of 3 nodes, not on node-3" in clusterctl(lab, "dump-stacks", *words, "-v").stdout  # fmt: skip
    nccl = json.loads(clusterctl(lab, "dump-stacks", *words, "--json").stdout)["nccl"]
    assert (nccl["answered"], nccl["moved"]) == (["node-1", "node-2"], False)
    done = clusterctl(lab, "dump-stacks", *words, "--no-ras")
    assert "unknown which rank is missing: NCCL RAS was not asked" in done.stdout
