"""`clusterctl preflight`: go, no-go, and what is said about it."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

import clusterctl.launch.inputs
import clusterctl.preflight.run
from checks.facts import LaunchNeeds
from checks.finding import Finding, Report, Verdict
from clusterctl import cli
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.launch.inputs import LaunchLine
from clusterctl.ledger.entries import INCIDENT, Entry, path_beside
from clusterctl.ledger.file import append, read
from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.preflight.run import headline, run_preflight
from clusterctl.remote.cluster import Cluster
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection, LocalTransport
from tests.ports import free_port

LINES = "n1 host=127.0.0.1\nn2 host=127.0.0.1 port=2222 rack=r7\nn3 host=127.0.0.1 slots=1\n"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Three names for this machine at loopback addresses, eight idle GPUs each."""
    cluster = LocalCluster(tmp_path, ["n1", "n2", "n3"])
    cluster.hostfile.write_text(LINES)
    for name in cluster.nodes:
        equip(cluster, name, fake.h100(8))
    monkeypatch.setattr(clusterctl.preflight.run, "GROWTH_S", 0.02)
    return patch(monkeypatch, cluster)


def equip(cluster: LocalCluster, name: str, gpus: str, apps: str | None = None, **how) -> None:
    env = fake.install(cluster.hostfile.parent / f"bin-{name}", gpus, apps, **how)
    torch = fake.install_torch(cluster.hostfile.parent / "site")
    cluster.nodes[name] = LocalConnection({**env, **torch})


def preflight(cluster: LocalCluster, *args: str) -> int:
    # What depends on the machine that runs the tests has tests of its own, over facts.
    own = "storage,host.limits,host.load,host.shm,host.swap,host.zombies,host.blocked"
    own += ",host.kernel_log,software.git_dirty"
    plain = ["--min-free", "0", "--outputs", str(cluster.hostfile.parent), "--skip-check", own]
    port = [] if "--master-port" in args else ["--master-port", str(free_port())]
    return cli.run(["preflight", *plain, *port, *args, str(cluster.hostfile)])


def printed(capsys) -> str:
    """stdout with single spaces: a table's widths are those of its longest cells."""
    return re.sub(r"[ ]+", " ", capsys.readouterr().out)


@pytest.mark.long
def test_good_fleet_is_go_and_one_line(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "-q") == 0
    out, err = capsys.readouterr()
    assert out.startswith("GO: ")
    assert out.endswith(" checks on 3 nodes\n")
    assert err == ""


@pytest.mark.long
def test_missing_gpu_is_no_go_with_the_node_to_leave_out_and_the_fix(
    nodes: LocalCluster, capsys
) -> None:
    equip(nodes, "n2", fake.h100(7))
    assert preflight(nodes) == 1
    lines = printed(capsys).splitlines()
    assert lines[0].split() == ["VERDICT", "CHECK", "NODES", "EVIDENCE"]
    assert lines[1].startswith("FAIL gpu.count_majority n2 7 GPUs, most nodes have 8")
    assert any(line.startswith("fix n2: ") for line in lines)
    assert lines[-1] == "NO-GO: 1 fail (gpu.count_majority); drop n2 to go with 2 nodes (-x n2)"


@pytest.mark.parametrize("height", [9, 60])  # with nine findings it would be 24
def test_what_bars_the_launch_is_among_the_last_lines_of_a_short_terminal(
    nodes: LocalCluster, capsys, monkeypatch: pytest.MonkeyPatch, height: int
) -> None:
    equip(nodes, "n2", fake.h100(7))
    warn = ["--severity=software.interpreter_exists=warn"]
    monkeypatch.setattr(Output, "page", lambda self: os.terminal_size((80, height)))
    assert preflight(nodes, "--python", "/nope/python", *warn) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = [line.split()[0] for line in lines if line.startswith(("FAIL ", "WARN "))]
    fixes = [line for line in lines if line.startswith("fix ")]
    worst = -1 if height == 9 else 0
    assert (verdicts[0], verdicts[-1])[worst] == "FAIL"
    assert fixes[worst].startswith("fix n2: ")
    assert lines[-1].startswith("NO-GO: 1 fail (gpu.count_majority), ")


def test_active_tests_without_a_node_say_why(nodes: LocalCluster, capsys) -> None:
    for name in ("n1", "n2", "n3"):
        nodes.kill(name)
    assert preflight(nodes, "--active", "--yes") == 3
    said = capsys.readouterr().err
    assert "active tests: no node to test\n  left out: n[1-3]: not reached\n" in said


def test_more_checks_than_a_line_can_name_are_counted() -> None:
    ids = ("gpu.count", "ib.state", "disk.free", "clock.offset", "ssh.port")
    findings = [Finding(id, Verdict.FAIL, (f"n{n}",), evidence="x") for n, id in enumerate(ids)]
    report = Report(("n0", "n1", "n2", "n3", "n4"), tuple(findings))
    assert "5 fail (clock.offset, disk.free, gpu.count and 2 more)" in headline(report)


@pytest.mark.long
def test_dead_node_is_no_go_and_exit_3(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n3")
    assert preflight(nodes) == 3
    out = printed(capsys)
    assert "UNKNOWN ssh.reachable n3 no answer, phase banner: the server sent nothing" in out
    assert "hint n3: look at sshd" in out
    assert out.endswith("NO-GO: 1 unknown (ssh.reachable); drop n3 to go with 2 nodes (-x n3)\n")


@pytest.mark.long
def test_missing_interpreter_fails_on_all_nodes_in_one_row(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "--python", "/nope/python") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:2]] == [
        ["FAIL", "software.interpreter_exists", "n[1-3]"]
    ]
    assert lines[-1].startswith("NO-GO: 1 fail")


@pytest.mark.long
def test_bare_nodes_go_where_no_training_environment_is_named(
    nodes: LocalCluster, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nope/python")  # the head's, which the nodes lack
    assert preflight(nodes) == 0
    out, err = capsys.readouterr()
    assert "software." not in out
    assert "no training environment was looked at: --launch or --python names one" in err
    assert preflight(nodes, "--active", "--dry-run") == 1
    assert "software.interpreter_exists" in capsys.readouterr().out


@pytest.mark.long
def test_busy_gpus_stop_a_launch_on_gpus(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n1", fake.h100(8, busy=True), fake.capture("h100-sxm-x8.apps.csv"))
    assert preflight(nodes) == 1
    assert "FAIL gpu.busy n1 8 processes on the GPUs" in printed(capsys)
    assert preflight(nodes, "--device", "cpu") == 0
    assert "WARN gpu.busy n1" in printed(capsys)


@pytest.mark.long
def test_port_in_use_fails_on_the_master(nodes: LocalCluster, capsys) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert preflight(nodes, "--master-port", str(port)) == 1
    out = printed(capsys)
    assert f"FAIL launch.port_free n1 port {port}: Address already in use" in out


@pytest.mark.long
def test_noise_is_a_warning_and_still_go(nodes: LocalCluster, capsys) -> None:
    nodes.nodes["n2"].shell = "echo Welcome; "
    assert preflight(nodes) == 0
    out = printed(capsys)
    assert "WARN shell.noise n2 the login shell prints at its start: 'Welcome'" in out
    assert ", 1 warn\n" in out


@pytest.mark.long
def test_verbose_shows_what_passed(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "-v") == 0
    out = printed(capsys)
    assert "PASS gpu.driver" in out
    assert "SKIP host.same_machine" in out
    assert "PASS gpu.nvlink" in out


@pytest.mark.long
def test_json_report(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n3")
    code = preflight(nodes, "--json")
    document = json.loads(capsys.readouterr().out)
    assert code == document["exit_code"] == 3, document["checks"][:3]
    assert (document["schema"], document["command"], document["verdict"]) == (
        1,
        "preflight",
        "NO-GO",
    )
    assert document["good_nodes"] == ["n1", "n2"]
    assert document["checks"][0]["id"] == "ssh.reachable"


@pytest.mark.long
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


@pytest.mark.long
def test_library_reports_results_as_they_arrive(nodes: LocalCluster) -> None:
    nodes.kill("n2")
    hosts = [Node("n1", host="127.0.0.1"), Node("n2"), Node("n3", host="127.0.0.1")]
    needs = LaunchNeeds(
        python=sys.executable, port=free_port(), slots={"n1": 8, "n2": 8, "n3": 8}, device="cuda",
        run_dir_parent=str(nodes.hostfile.parent), min_free_bytes=1,
    )  # fmt: skip
    seen: list[str] = []

    def watch(fanout, _total: int):
        for result in fanout:
            seen.append(result.node.name)
            yield result

    cluster = Cluster(hosts, LocalTransport(nodes.nodes), width=8, sweep=watch)
    report = run_preflight(cluster, needs)
    assert sorted(seen) == ["n1", "n2", "n3"]
    assert report.nodes == ("n1", "n2", "n3")
    assert report.bad_nodes == ("n2",)
    assert headline(report).startswith("NO-GO: 1 unknown")
    assert report.seconds > 0


@pytest.mark.long
def test_driver_text_of_one_gpu_becomes_a_finding_with_its_number(
    nodes: LocalCluster, capsys
) -> None:
    equip(
        nodes, "n2", fake.h100(8), inactive={5: [3]},
        change={3: {"Remapped Rows/Pending": "Yes"}, 6: {"Link Width/Current": "8x"}},
        log=fake.kernel_line("NVRM: Xid (PCI:0000:2a:00 GPU-I:05): 79, GPU has fallen off the bus"),
    )  # fmt: skip
    assert preflight(nodes) == 1
    out = printed(capsys)
    assert "FAIL gpu.remap n2 GPU 3: a row waits to be remapped" in out
    assert "FAIL gpu.pcie n2 GPU 6: PCIe x8 of x16" in out
    assert "FAIL gpu.nvlink n2 GPU 5: link 3 inactive" in out
    assert "FAIL gpu.xid n2 Xid 79 on GPU 0000:2a:00: GPU has fallen off the bus" in out
    assert "[reboot]" in out


@pytest.mark.long
def test_profile_that_was_recorded_knows_what_the_majority_does_not(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "good.toml"
    assert preflight(nodes, "--record", str(path)) == 0
    assert '"gpu.count_majority" = "8"' in path.read_text()
    for name in nodes.nodes:  # a fault that all nodes share
        equip(nodes, name, fake.h100(7))
    assert preflight(nodes) == 0
    capsys.readouterr()
    assert preflight(nodes, "--profile", str(path)) == 1
    assert "FAIL gpu.count_majority n[1-3] 7 GPUs" in printed(capsys)


@pytest.mark.long
def test_severity_silences_and_softens(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n2", fake.h100(7))
    assert preflight(nodes, "--severity", "gpu.count_majority=warn") == 0
    assert "WARN gpu.count_majority n2" in printed(capsys)
    assert preflight(nodes, "--severity", "gpu.count_majority=skip") == 0
    assert "gpu.count_majority" not in printed(capsys)
    assert preflight(nodes, "--severity", "gpu.cuont=skip") == 2
    assert preflight(nodes, "--severity", "gpu.driver=loud") == 2


@pytest.mark.long
def test_junit_has_a_suite_for_each_node(nodes: LocalCluster, tmp_path: Path, capsys) -> None:
    import xml.etree.ElementTree as xml

    equip(nodes, "n2", fake.h100(7))
    nodes.kill("n3")
    path = tmp_path / "preflight.xml"
    assert preflight(nodes, "--junit", str(path)) == 1
    suites = {suite.get("name"): suite for suite in xml.parse(path).getroot()}
    assert [suites[name].get("failures") for name in ("n1", "n2", "n3")] == ["0", "1", "0"]
    assert [suites[name].get("errors") for name in ("n1", "n2", "n3")] == ["0", "0", "1"]


def test_explain_and_list_ask_no_node(capsys) -> None:
    assert cli.run(["preflight", "--explain", "time.sync"]) == 0
    out = capsys.readouterr().out
    assert "local stratum" in out
    assert "silence:" in out
    assert cli.run(["preflight", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 50
    assert cli.run(["preflight", "--explain", "time.snyc"]) == 2
    assert "did you mean time.sync?" in capsys.readouterr().err


@pytest.mark.long
def test_shared_folder_is_proved_by_a_token_that_is_removed_again(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    own = ["--check", "storage.token"]
    hostfile = str(nodes.hostfile)
    assert cli.run(["preflight", *own, "--shared", str(shared), "-v", hostfile]) == 0
    assert "PASS storage.token n[1-3]" in printed(capsys)
    assert not list(shared.iterdir())


@pytest.mark.long
def test_launch_line_finds_the_file_that_is_missing_and_a_hca_that_is_not_there(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    line = f"demo --dataset.data-path {tmp_path}/no.csv"
    assert preflight(nodes, "--launch", line, "--env", "NCCL_IB_HCA=mlx5_0") == 1
    out = printed(capsys)
    assert f"FAIL launch.files n[1-3] {tmp_path}/no.csv is missing" in out
    assert "FAIL launch.ib_hca n[1-3] mlx5_0 of NCCL_IB_HCA is not on the node" in out
    assert preflight(nodes, "--launch", "--lr 1") == 2


@pytest.mark.long
def test_wandb_key_is_never_shown(nodes: LocalCluster, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret-of-mine")
    line = LaunchLine("", {"wandb": True})  # as the trainer would resolve it, seconds later
    monkeypatch.setattr(clusterctl.launch.inputs, "resolve", lambda *_, **__: line)
    preflight(nodes, "--json", "--launch", "demo --wandb online")
    out, err = capsys.readouterr()
    assert "secret-of-mine" not in out + err
    wandb = [one for one in json.loads(out)["checks"] if one["id"] == "launch.wandb"]
    assert {one["verdict"] for one in wandb} == {"PASS", "SKIP"}


@pytest.mark.long
def test_failed_check_is_entered_once_and_a_node_with_many_faults_is_warned_of(
    nodes: LocalCluster, capsys
) -> None:
    path = path_beside(nodes.hostfile)
    equip(nodes, "n2", fake.h100(7))
    for _ in range(2):
        assert preflight(nodes, "--check", "gpu,host.history") == 1
        (entry,) = read(path).entries
        assert (entry.node, entry.what, entry.state) == ("n2", "gpu.count_majority", "failed")
    equip(nodes, "n2", fake.h100(8))
    now_s = entry.time_s
    append(
        path,
        [Entry("n3", INCIDENT, "", now_s, what="xid-79", run=run, counts=True) for run in "aab"],
    )
    capsys.readouterr()
    assert preflight(nodes, "--check", "gpu,host.history") == 0
    out = printed(capsys)
    assert "WARN host.history n3 3 incidents in 2 runs in the last 14 days, last: xid-79 on" in out
    assert read(path).entries[-1].state == "passed"


@pytest.mark.long
def test_history_that_cannot_be_written_is_a_warning_and_no_verdict(
    nodes: LocalCluster, capsys
) -> None:
    path_beside(nodes.hostfile).mkdir()
    equip(nodes, "n2", fake.h100(7))
    assert preflight(nodes, "--check", "gpu") == 1
    assert "not entered in the history of nodes" in capsys.readouterr().err
