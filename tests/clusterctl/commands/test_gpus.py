"""`clusterctl gpus`: each state of a node shows as what it is, with the right exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from clusterctl import cli
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection

HEADER = ["NODE", "GPUS", "PROC", "POWER", "W/GPU", "UTIL", "MEM", "TEMP", "FLAGS"]
needs_no_driver = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="this machine has a nvidia-smi of its own"
)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["n1", "n2", "n3"])
    for name in cluster.nodes:
        equip(cluster, name, fake.h100(8))
    return patch(monkeypatch, cluster)


def equip(cluster: LocalCluster, name: str, gpus: str, apps: str | None = None, **how) -> None:
    env = fake.install(cluster.hostfile.parent / f"bin-{name}", gpus, apps, **how)
    cluster.nodes[name] = LocalConnection(env)


def show(cluster: LocalCluster, *args: str) -> int:
    return cli.run(["gpus", *args, str(cluster.hostfile)])


def rows(capsys) -> dict[str, list[str]]:
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == HEADER
    return {line.split()[0]: line.split()[1:] for line in out[1:]}


@pytest.mark.long
def test_healthy_nodes_fold_into_one_row(nodes: LocalCluster, capsys) -> None:
    assert show(nodes) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        HEADER, ["n[1-3]", "8", "0", "687", "W", "86", "0%", "0%", "31", "C"],
    ]  # fmt: skip
    assert err.splitlines() == [
        "3 nodes, 24 GPUs, 2.06 kW", "coldest n1/4 28 C 85 W, hottest n1/2 31 C 86 W",
    ]  # fmt: skip


@pytest.mark.long
def test_busy_node_shows_processes_power_and_memory(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n2", fake.h100(8, busy=True), fake.capture("h100-sxm-x8.apps.csv"))
    assert show(nodes) == 0
    assert rows(capsys)["n2"] == ["8", "8", "5.59", "kW", "698", "100%", "87%", "31", "C"]


@pytest.mark.long
def test_missing_gpu_is_named_and_exit_1(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", fake.h100(7))
    assert show(nodes) == 1
    out, err = capsys.readouterr()
    assert "n3        7!" in out
    assert "1 missing (most nodes have 8)" in out
    assert "23 GPUs (expected 24)" in err


@pytest.mark.long
def test_unreadable_power_is_shown_and_the_row_is_kept(nodes: LocalCluster, capsys) -> None:
    # A ValueError of the original lost the whole table here.
    lines = fake.h100(8).splitlines()
    lines[4] = lines[4].replace("85.48 W", "[N/A]")
    equip(nodes, "n3", "\n".join(lines) + "\n")
    assert show(nodes) == 0
    assert " ".join(rows(capsys)["n3"]).startswith("8 0 601 W 86 0% 0% 31 C power [N/A] on GPU 3")


@pytest.mark.long
def test_what_a_card_should_tell_and_does_not_is_exit_3(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", fake.h100(8).replace("85.48 W", "[Unknown Error]"))
    assert show(nodes) == 3
    row = rows(capsys)["n3"]
    assert row[0] == "8?"
    assert "power [Unknown Error] on GPU 3" in " ".join(row)
    equip(nodes, "n3", fake.h100(8), "NVIDIA-SMI cannot say\n")
    assert show(nodes) == 3
    assert "processes: cannot read 'NVIDIA-SMI cannot say'" in " ".join(rows(capsys)["n3"])


@pytest.mark.long
def test_broken_driver_shows_its_text_and_exit_1(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", fake.capture("driver-failed.txt"), rc=9)
    assert show(nodes) == 1
    row = rows(capsys)["n3"]
    assert row[:7] == ["-!", "-", "-", "-", "-", "-", "-"]
    assert " ".join(row[7:]) == (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    )
    assert show(nodes, "-v") == 1
    assert "is installed and running." in capsys.readouterr().err


@pytest.mark.long
def test_one_lost_gpu_keeps_the_other_seven(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", fake.capture("lost-gpu.txt"), rc=15)
    assert show(nodes) == 1
    row = " ".join(rows(capsys)["n3"])
    assert row.startswith("7! - 601 W 86 ")
    assert "1 missing" in row
    assert "GPU0000:5D:00.0: Unknown Error" in row


@pytest.mark.long
def test_hung_nvidia_smi_is_bounded_and_exit_3(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", "", hang=True)
    assert show(nodes, "--command-timeout", "3") == 3
    assert " ".join(rows(capsys)["n3"]) == "- - - - - - - nvidia-smi: no end in 1 s, killed"


@pytest.mark.long
def test_dead_node_has_its_row_and_exit_3(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n2")
    assert show(nodes) == 3
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["n1", "n2", "n3"]
    assert "no answer: banner: the server sent nothing" in out
    assert "error: 1 of 3 nodes did not answer" in err


@pytest.mark.long
def test_gpus_of_nodes_that_say_nothing_are_not_counted_as_none(
    nodes: LocalCluster, capsys
) -> None:
    nodes.kill("n3")
    assert show(nodes, "-q") == 3
    assert "3 nodes, 16 GPUs (expected 24, those of 1 node unknown)" in capsys.readouterr().out
    assert show(nodes, "-q", "-w", "n3") == 3
    assert capsys.readouterr().out.startswith("1 node, GPUs unknown")


@pytest.mark.long
def test_fault_weighs_more_than_a_dead_node(nodes: LocalCluster) -> None:
    nodes.kill("n2")
    equip(nodes, "n3", fake.h100(7))
    assert show(nodes) == 1


@pytest.mark.long
@needs_no_driver
def test_no_nvidia_smi_anywhere_is_a_fact_and_exit_0(nodes: LocalCluster, capsys) -> None:
    for name in nodes.nodes:
        nodes.nodes[name] = LocalConnection()
    assert show(nodes) == 0
    assert (
        " ".join(rows(capsys)["n[1-3]"])
        == "0 - - - - - - no nvidia-smi, and no NVIDIA device on PCI"
    )


@pytest.mark.long
@needs_no_driver
def test_no_nvidia_smi_on_some_nodes_is_exit_1(nodes: LocalCluster, capsys) -> None:
    nodes.nodes["n2"] = LocalConnection()
    assert show(nodes) == 1
    assert (
        " ".join(rows(capsys)["n2"]) == "0! - - - - - - no nvidia-smi, and no NVIDIA device on PCI"
    )


@pytest.mark.long
def test_no_gpu_on_some_nodes_is_exit_1(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n3", fake.capture("no-devices.txt"), rc=6)
    assert show(nodes) == 1
    assert " ".join(rows(capsys)["n3"]) == "0! - - - - - - no GPU"


@pytest.mark.long
def test_one_rank_that_waits_among_busy_ones_is_not_hidden_by_the_mean(
    nodes: LocalCluster, capsys
) -> None:
    lines = fake.h100(8, busy=True).splitlines()
    lines[6] = lines[6].replace("698.30 W", "101.00 W")
    equip(nodes, "n3", "\n".join(lines) + "\n")
    assert show(nodes) == 0
    out, err = capsys.readouterr()
    assert "GPU 5 idle at 101 W, the others at 698 W" in out
    assert "idle among busy: n3/5" in err


@pytest.mark.long
def test_json_has_all_data_of_each_gpu(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n2")
    assert show(nodes, "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"], document["gpus"]) == (1, "gpus", 16)
    assert [node["node"] for node in document["nodes"]] == ["n1", "n2", "n3"]
    first, dead = document["nodes"][:2]
    assert first["gpus"][0]["power_w"] == 100.89
    assert first["gpus"][7]["bus_id"] == "00000000:DB:00.0"
    assert dead["unreachable"]["phase"] == "banner"


@pytest.mark.long
def test_quiet_is_the_summary_alone(nodes: LocalCluster, capsys) -> None:
    assert show(nodes, "-q") == 0
    assert capsys.readouterr() == ("3 nodes, 24 GPUs, 2.06 kW\n", "")


@pytest.mark.long
def test_no_colour_codes_in_a_pipe(nodes: LocalCluster, capsys, monkeypatch) -> None:
    equip(nodes, "n3", fake.h100(7))
    show(nodes)
    assert "\x1b" not in "".join(capsys.readouterr())
    show(nodes, "--color", "always")
    assert "\x1b[31m" in capsys.readouterr().out
