"""`clusterctl env`: what a shell gets from it, and who is told what could not be found out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from checks.nccl.recommend import Suggestion
from clusterctl import cli
from clusterctl.fabric import collect as fabric_look
from tests.clusterctl.commands.local_cluster import LocalCluster, patch


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    return patch(monkeypatch, LocalCluster(tmp_path, ["n1", "n2"]))


def ask(cluster: LocalCluster, *args: str) -> int:
    return cli.run(["env", *args, str(cluster.hostfile)])


def suggests(monkeypatch: pytest.MonkeyPatch, *found: Suggestion) -> None:
    monkeypatch.setattr(fabric_look, "suggestions", lambda *_: found)


def evaluated(text: str, name: str) -> str:
    """The variable after `eval "$(…)"` in a plain shell."""
    script = f'eval "$1"; printf %s "${name}"'
    done = subprocess.run(["sh", "-c", script, "sh", text], capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout


@pytest.mark.long
def test_lines_are_safe_to_eval_whatever_a_node_calls_its_interface(
    nodes: LocalCluster, monkeypatch, capsys, tmp_path: Path
) -> None:
    evil = f"=a b;$(touch {tmp_path}/x)'\"`id`"
    suggests(monkeypatch, Suggestion("NCCL_SOCKET_IFNAME", evil, "why"))
    assert ask(nodes) == 0
    out, err = capsys.readouterr()
    assert out.startswith("export NCCL_SOCKET_IFNAME='=a b;$(touch")
    assert err.startswith("# NCCL_SOCKET_IFNAME=")
    assert evaluated(out, "NCCL_SOCKET_IFNAME") == evil
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_real_nodes_of_this_machine(nodes: LocalCluster, capsys) -> None:
    assert ask(nodes, "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert "export TOKENIZERS_PARALLELISM=false" in out
    assert evaluated(out, "OMP_NUM_THREADS") == "1"
    assert all(line.startswith("export ") for line in out.splitlines())


@pytest.mark.long
def test_what_is_left_out_is_no_line_for_the_shell_but_a_reason(
    nodes: LocalCluster, monkeypatch, capsys
) -> None:
    suggests(monkeypatch, Suggestion("NCCL_P2P_LEVEL", None, "one GPU a node"))
    assert ask(nodes) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "# NCCL_P2P_LEVEL is left out: one GPU a node" in err


@pytest.mark.long
def test_nodes_that_disagree_are_named_also_under_quiet(
    nodes: LocalCluster, monkeypatch, capsys
) -> None:
    suggests(monkeypatch, Suggestion("NCCL_IB_HCA", "=mlx5_0", "why", (("n2", "there it would be =mlx5_1"),)))  # fmt: skip
    assert ask(nodes, "-q") == 1
    out, err = capsys.readouterr()
    assert out == "export NCCL_IB_HCA='=mlx5_0'\n"
    assert err.strip() == "n2: there it would be =mlx5_1"


@pytest.mark.long
def test_dead_node_is_exit_3_and_the_others_still_have_an_environment(
    nodes: LocalCluster, monkeypatch, capsys
) -> None:
    nodes.kill("n2")
    suggests(monkeypatch, Suggestion("NCCL_IB_HCA", "=mlx5_0", "why", (), (("n2", "no answer"),)))
    assert ask(nodes) == 3
    out, err = capsys.readouterr()
    assert out == "export NCCL_IB_HCA='=mlx5_0'\n"
    assert "n2: unknown for NCCL_IB_HCA: no answer" in err
    assert "1 of 2 nodes did not answer" in err


def test_no_answer_at_all_is_exit_3_and_prints_nothing_to_eval(nodes: LocalCluster, capsys) -> None:
    nodes.kill("n1")
    nodes.kill("n2")
    assert ask(nodes) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "no node answered" in err


@pytest.mark.long
def test_json_has_values_and_reasons(nodes: LocalCluster, monkeypatch, capsys) -> None:
    suggests(monkeypatch, Suggestion("A", "1", "why"), Suggestion("B", None, "not here"))
    assert ask(nodes, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"], document["env"]) == (1, "env", {"A": "1"})
    assert document["variables"][1]["reason"] == "not here"
