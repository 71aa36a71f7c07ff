"""`preflight --active` as it is typed: asks, refuses, says what it would do, and leaves nothing behind."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl import cli
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection
from tests.clusterctl.preflight.active.nodes import is_listening, run_in, running
from tests.lab import Lab


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["n1", "n2"])
    bare = tmp_path / "python3"  # an interpreter that sees no package
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
    bare.chmod(0o755)
    return patch(monkeypatch, cluster)


def preflight(cluster: LocalCluster, *args: str) -> int:
    bare = str(cluster.hostfile.parent / "python3")
    plain = ["--device", "cpu", "--min-free", "0", "--python", bare, "--check", "active"]
    return cli.run(["preflight", *plain, *args, str(cluster.hostfile)])


@pytest.mark.long
def test_without_a_terminal_nothing_is_tested_unless_yes_is_said(
    nodes: LocalCluster, capsys
) -> None:
    assert preflight(nodes, "--active") == 4
    err = capsys.readouterr().err
    assert "active tests on n[1-2] (2 nodes, CPU):" in err
    assert "error: nothing was tested" in err
    assert "--yes answers yes" in err


@pytest.mark.long
def test_dry_run_says_the_plan_and_tests_nothing(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes, "--active", "--dry-run", "--json") == 0
    out, err = capsys.readouterr()
    assert "all-reduce  1 MiB by pairs" in err
    assert json.loads(out)["checks"] == []
    for connection in nodes.nodes.values():
        assert isinstance(connection, LocalConnection)
        assert len(connection.commands) == 1  # the look


def test_options_of_active_tests_alone_are_refused(nodes: LocalCluster, capsys) -> None:
    assert preflight(nodes) == 2  # --check active
    assert "goes with --active" in capsys.readouterr().err
    assert cli.run(["preflight", "--dry-run", str(nodes.hostfile)]) == 2


@pytest.mark.long
def test_busy_gpus_are_refused(nodes: LocalCluster, capsys) -> None:
    for name in nodes.nodes:
        apps = fake.capture("h100-sxm-x8.apps.csv") if name == "n2" else None
        env = fake.install(nodes.hostfile.parent / f"bin-{name}", fake.h100(8), apps)
        nodes.nodes[name] = LocalConnection(env)
    assert preflight(nodes, "--active", "--yes", "--device", "cuda") == 4
    err = capsys.readouterr().err
    assert "GPUs are busy: n2: 8 processes on the GPUs" in err
    assert "pid 88121 88122" in err
    assert "-x n2" in err


@pytest.mark.long
def test_an_environment_without_torch_is_unknown_with_the_reason(
    nodes: LocalCluster, capsys
) -> None:
    assert (
        preflight(nodes, "--active", "--yes", "--check", "active.matmul", "--skip", "active.port")
        == 3
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "UNKNOWN active.matmul n[1-2] torch is not installed for" in out
    assert "--python PATH names the interpreter" in out


@pytest.mark.long
def test_one_device_alone_has_nothing_to_sum_and_needs_no_torch(
    nodes: LocalCluster, capsys
) -> None:
    args = ["--active", "--yes", "--check", "active.allreduce", "--python", "/nowhere/python"]
    assert (
        preflight(
            nodes,
            *args,
            "--skip",
            "active.port,active.matmul,active.compute,active.copy",
            "-w",
            "n1",
            "-v",
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "one node with one device has none to sum with" in out + err


@pytest.mark.long
def test_without_an_interpreter_it_is_unknown_too(nodes: LocalCluster, capsys) -> None:
    args = ["--active", "--yes", "--check", "active.allreduce", "--python", "/nowhere/python"]
    assert (
        preflight(nodes, *args, "--skip", "active.port,active.matmul,active.token,active.read") == 3
    )
    assert "/nowhere/python cannot be started: No such file or directory" in capsys.readouterr().out


@pytest.mark.long
def test_two_names_of_one_machine_do_not_hold_the_port_for_each_other(
    nodes: LocalCluster, tmp_path: Path, capsys
) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes.hostfile.write_text("n1 host=127.0.0.1\nn2 host=127.0.0.1\n")
    shared = tmp_path / "shared"
    shared.mkdir()
    skip = "active.matmul,active.compute,active.copy,active.allreduce"
    args = [
        "--active",
        "--yes",
        "--skip",
        skip,
        "--shared",
        str(shared),
        "--master-port",
        str(port),
    ]
    assert preflight(nodes, *args) == 0, capsys.readouterr().out
    assert list(shared.iterdir()) == []


@pytest.mark.long
@pytest.mark.lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_test_leaves_no_process_no_port_and_no_file(
    module_lab, number: signal.Signals
) -> None:
    lab: Lab = module_lab(2)
    shared = lab.directory / "shared"
    shared.mkdir()
    run_in(lab.nodes[1], f"mount -t tmpfs none {shared}")  # it looks for the token for ten seconds
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "preflight", "--active", "--yes", "--device", "cpu",
         "--check", "active.port,active.token", "--shared", str(shared), str(lab.hostfile)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A runner in the background of a shell has SIGINT ignored, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait_until(
            lambda: any(one.name.startswith(".clusterctl-active") for one in shared.iterdir())
        )
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    assert b"Traceback" not in err
    # The head's own token dies with a head that is killed; the nodes' files are ours here.
    wait_until(lambda: not [one for one in shared.iterdir() if "active" in one.name])
    for node in lab.nodes:
        wait_until(lambda node=node: not running(node, "sys.stdin.buffer"))
        assert not running(node, "posix_fadvise")
        assert not is_listening(node, 29500)


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
