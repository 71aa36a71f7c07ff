"""`clusterctl fabric`, `env` and `clock` over real sshd on nodes that look like H100 nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.equipment import QUIET, Equipment

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def nodes(module_lab) -> Lab:
    lab = module_lab(3)
    for equipment in (Equipment(node) for node in lab.nodes):
        if equipment.node.name == "node-3":
            equipment.cards(down="mlx5_4")
            a_minute_ago = time.clock_gettime(time.CLOCK_BOOTTIME) - 60
            flap = f"[{a_minute_ago:12.6f}] mlx5_core 0000:0c:00.0 ib6: Link {{}}\n"
            equipment.gpus(log=QUIET + (flap.format("down") + flap.format("up")) * 3)
    return lab


def ask(nodes: Lab, state: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *args, str(nodes.hostfile)],
        capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip


@pytest.mark.long
def test_fabric_folds_alike_nodes_and_names_the_one_with_a_port_down(
    nodes: Lab, tmp_path: Path
) -> None:
    done = ask(nodes, tmp_path, "fabric", "--growth", "0.1", "-v")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    # 9/9? on a kernel without modules: whether nvidia_peermem is loaded cannot be found out there.
    assert [word.rstrip("?") for word in lines[1].split()[:2]] == ["node-[1-2]", "9/9"]
    assert lines[2].split()[:2] == ["node-3", "8/9!"]
    assert "mlx5_4:1 is DOWN/Polling" in lines[2]
    assert "ib6 lost its link 3 times in 24 h" in lines[2]
    hca = next(line for line in lines if line.startswith("NCCL_IB_HCA="))
    assert hca.startswith("NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9")
    assert "node-3: there it would be =mlx5_0,mlx5_1,mlx5_5" in done.stdout
    assert "NCCL_SOCKET_IFNAME='=eth0'" in done.stdout
    assert "node-3  mlx5_4:1" in done.stdout  # -v: a line for each port


@pytest.mark.long
def test_errors_that_grew_since_the_last_look_are_told(nodes: Lab, tmp_path: Path) -> None:
    first = json.loads(ask(nodes, tmp_path, "fabric", "--growth", "0", "--json").stdout)
    assert not [flag for flag in first["nodes"][2]["flags"] if "symbol_error" in flag]
    # node-3 has a tree of its own: the one with the port that is down.
    counter = nodes.directory / "class-mlx5_4/mlx5_0/ports/1/counters/symbol_error"
    counter.write_text(f"{int(counter.read_text()) + 7}\n")
    second = json.loads(ask(nodes, tmp_path, "fabric", "--growth", "0", "--json").stdout)
    grown = [flag for flag in second["nodes"][2]["flags"] if "symbol_error +7" in flag]
    assert len(grown) == 1
    assert re.fullmatch(r"mlx5_0:1: symbol_error \+7 in [\d.]+ m?s", grown[0])
    assert not [flag for flag in second["nodes"][0]["flags"] if "symbol_error" in flag]


@pytest.mark.long
def test_env_gives_the_shell_the_ports_and_the_interface(nodes: Lab, tmp_path: Path) -> None:
    done = ask(nodes, tmp_path, "env")
    assert done.returncode == 1, done.stderr  # node-3 disagrees
    values = dict(
        line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines()
    )  # fmt: skip
    assert values["NCCL_IB_HCA"].startswith("'=mlx5_0,")
    assert values["NCCL_SOCKET_IFNAME"] == "'=eth0'"
    assert values["GLOO_SOCKET_IFNAME"] == "eth0"
    assert values["NCCL_P2P_LEVEL"] == "NVL"
    assert values["NCCL_DEBUG"] == "WARN"
    assert "node-3: there it would be" in done.stderr


@pytest.mark.long
def test_launch_takes_the_environment_from_facts_and_the_users_word_over_it(
    nodes: Lab, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "clusterctl", "launch", "demo", str(nodes.hostfile), "--env-from-facts",
            "--env", "NCCL_DEBUG=INFO", "--dry-run", "--skip-preflight", "--device", "cuda", "--json",
            "--outputs", str(tmp_path / "outputs"), "--nproc_per_node", "8",
        ],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "node-3: there it would be" in done.stderr
    env = json.loads(done.stdout)["plan"]["environment"]
    assert env["NCCL_IB_HCA"].startswith("=mlx5_0,mlx5_1,mlx5_4")
    assert env["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert env["NCCL_DEBUG"] == "***"  # what --env says shows nowhere
    assert not (tmp_path / "outputs").exists()


@pytest.mark.long
def test_clock_over_sshd_tells_the_shifted_node_from_the_others(nodes: Lab, tmp_path: Path) -> None:
    Shift(nodes, "node-2", 0.25)
    done = ask(nodes, tmp_path, "clock", "--json")
    document = json.loads(done.stdout)
    first, shifted, third = document["nodes"]
    for one, truth_s in ((first, 0.0), (shifted, 0.25), (third, 0.0)):
        assert abs(one["offset_s"] - truth_s) <= max(0.005, one["error_s"])
    assert shifted["verdict"] == "bad"
    assert done.returncode == 1
    assert shifted["steered"].startswith("chrony: 10.")


class Shift:
    """A node whose payloads read a shifted wall clock, once."""

    def __init__(self, nodes: Lab, name: str, seconds: float) -> None:
        node = next(one for one in nodes.nodes if one.name == name)
        path = node.directory / "python3"
        code = f"import time;_t=time.time;time.time=lambda:_t()+{seconds}"
        path.write_text(
            f'#!/bin/sh\nshift 3; exec {shlex.quote(sys.executable)} -I -S -c "{code}\n$1"\n'
        )
        path.chmod(0o755)
        node.bind(path, "python3")
