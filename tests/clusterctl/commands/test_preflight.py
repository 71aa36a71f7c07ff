"""`clusterctl preflight`: go, no-go, and what is said about it."""

from __future__ import annotations

import json
import random
import socket
import sys
from pathlib import Path

import pytest

from checks.facts import LaunchNeeds
from clusterctl import cli
from clusterctl.nodes import Node, parse_hostfile, read_hostfile
from clusterctl.preflight import headline, run_preflight
from clusterctl.transport.base import Limits
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection, LocalTransport

LINES = "n1 host=127.0.0.1\nn2 host=127.0.0.1 port=2222 rack=r7\nn3 host=127.0.0.1 slots=1\n"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Three names for this machine at loopback addresses, eight idle GPUs each."""
    cluster = LocalCluster(tmp_path, ["n1", "n2", "n3"])
    cluster.hostfile.write_text(LINES)
    for name in cluster.nodes:
        equip(cluster, name, fake.h100(8))
    return patch(monkeypatch, cluster)


def equip(cluster: LocalCluster, name: str, gpus: str, apps: str | None = None, **how) -> None:
    env = fake.install(cluster.hostfile.parent / f"bin-{name}", gpus, apps, **how)
    cluster.nodes[name] = LocalConnection(env)


def free_port() -> int:
    """A port below the ephemeral range, where no outgoing connection takes it meanwhile."""
    for port in random.sample(range(20000, 30000), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def preflight(cluster: LocalCluster, *args: str) -> int:
    plain = [
        "--min-free",
        "0",
        "--outputs",
        str(cluster.hostfile.parent),
        "--skip-check",
        "storage",
    ]
    port = [] if "--master-port" in args else ["--master-port", str(free_port())]
    return cli.run(["preflight", *plain, *port, *args, str(cluster.hostfile)])


def test_good_fleet_is_go_and_one_line(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "-q") == 0
    out, err = capsys.readouterr()
    assert out.startswith("GO: ")
    assert out.endswith(" checks on 3 nodes\n")
    assert err == ""


def test_missing_gpu_is_no_go_with_the_node_to_leave_out_and_the_fix(
    nodes: LocalCluster, capsys
) -> None:
    equip(nodes, "n2", fake.h100(7))
    assert preflight(nodes) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["VERDICT", "CHECK", "NODES", "EVIDENCE"]
    assert lines[1].startswith("FAIL     gpu.count_majority  n2     7 GPUs, most nodes have 8")
    assert any(line.startswith("fix n2: ") for line in lines)
    assert lines[-1] == "NO-GO: 1 fail; -x n2 to go with 2 nodes"


def test_dead_node_is_no_go_and_exit_3(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n3")
    assert preflight(nodes) == 3
    out = capsys.readouterr().out
    assert "UNKNOWN  ssh.reachable  n3     no answer, phase banner: the server sent nothing" in out
    assert "hint n3: look at sshd" in out
    assert out.endswith("NO-GO: 1 unknown; -x n3 to go with 2 nodes\n")


def test_missing_interpreter_fails_on_all_nodes_in_one_row(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "--python", "/nope/python") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:2]] == [
        ["FAIL", "software.interpreter_exists", "n[1-3]"]
    ]
    assert lines[-1] == "NO-GO: 1 fail"


def test_busy_gpus_stop_a_launch_on_gpus(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n1", fake.h100(8, busy=True), fake.capture("h100-sxm-x8.apps.csv"))
    assert preflight(nodes) == 1
    assert "FAIL     gpu.busy  n1     8 processes on the GPUs" in capsys.readouterr().out
    assert preflight(nodes, "--device", "cpu") == 0
    assert "WARN     gpu.busy  n1" in capsys.readouterr().out


def test_port_in_use_fails_on_the_master(nodes: LocalCluster, capsys) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert preflight(nodes, "--master-port", str(port)) == 1
    out = capsys.readouterr().out
    assert f"FAIL     launch.port_free  n1     port {port}: Address already in use" in out


def test_noise_is_a_warning_and_still_go(nodes: LocalCluster, capsys) -> None:
    nodes.nodes["n2"].shell = "echo Welcome; "
    assert preflight(nodes) == 0
    out = capsys.readouterr().out
    assert "WARN     shell.noise  n2     the login shell prints at its start: 'Welcome'" in out
    assert ", 1 warn\n" in out


def test_verbose_shows_what_passed(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "-v") == 0
    out = capsys.readouterr().out
    assert "PASS     gpu.driver" in out
    assert "SKIP     host.same_machine" in out


def test_json_report(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n3")
    assert preflight(nodes, "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"], document["verdict"]) == (
        1,
        "preflight",
        "NO-GO",
    )
    assert document["good_nodes"] == ["n1", "n2"]
    assert document["checks"][0]["id"] == "ssh.reachable"


def test_write_good_is_a_hostfile_with_every_key(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    nodes.kill("n3")
    path = tmp_path / "good.txt"
    assert preflight(nodes, "--write-good", str(path)) == 3
    written = read_hostfile(path)
    assert written == parse_hostfile(LINES)[:2]
    assert written[1].labels == (("rack", "r7"),)
    assert f"2 nodes written to {path}" in capsys.readouterr().err


def test_unknown_check_is_exit_2_with_the_nearest_name(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "--check", "gpu.drivr") == 2
    assert "did you mean gpu.driver?" in capsys.readouterr().err


def test_library_reports_results_as_they_arrive(nodes: LocalCluster) -> None:
    nodes.kill("n2")
    hosts = [Node("n1", host="127.0.0.1"), Node("n2"), Node("n3", host="127.0.0.1")]
    needs = LaunchNeeds(
        python=sys.executable, port=free_port(), slots={"n1": 8, "n2": 8, "n3": 8}, device="cuda",
        run_dir_parent=str(nodes.hostfile.parent), min_free_bytes=1,
    )  # fmt: skip
    seen: list[str] = []
    report = run_preflight(
        hosts, LocalTransport(nodes.nodes), Limits(), needs, 8,
        on_result=lambda result: seen.append(result.node.name),
    )  # fmt: skip
    assert sorted(seen) == ["n1", "n2", "n3"]
    assert report.nodes == ("n1", "n2", "n3")
    assert report.bad_nodes == ("n2",)
    assert headline(report).startswith("NO-GO: 1 unknown")
    assert report.seconds > 0
