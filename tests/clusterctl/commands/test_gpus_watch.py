"""`clusterctl gpus --processes` and `--watch`: pages, blocks, JSON lines, Ctrl-C, processes with their run."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import cli
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from tests.clusterctl.payload.local import LocalConnection

HOME = "\x1b[H\x1b[2J"
UUIDS = re.findall(r"GPU-[0-9a-f-]+", fake.h100(8))
MAIN = (
    "import sys; from pathlib import Path; from clusterctl import cli, settings;"
    "from tests.clusterctl.commands.local_cluster import LocalCluster;"
    "from tests.clusterctl.payload.local import LocalConnection, LocalTransport;"
    "where = Path(sys.argv[1]); names = ['n1', 'n2', 'n3'];"
    "nodes = {n: LocalConnection({'PATH': f'{where}/bin-{n}:' + __import__('os').environ['PATH']}) for n in names};"
    "dead = LocalCluster(where, names); dead.kill('n3'); nodes['n3'] = dead.nodes['n3'];"
    "settings.Settings.transport = lambda self: LocalTransport(nodes);"
    "sys.exit(cli.run(['gpus', '--watch', *sys.argv[2:], str(dead.hostfile)]))"
)
"""clusterctl in a process of its own, with two nodes that answer and a dead one."""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the tag of a run, as our launcher's ranks have it."""
    env = {**os.environ, "CLUSTERCTL_RUN": "run-7", "RANK": "3"}
    line = ["-c", "input()", "train.py", "--api-key", "hush", "--wandb-token=hush"]
    line += ["--wandb_key", "-hush", "db-pwd=hush", "s3://me:hush@hub", "wandb", "login", "hush"]
    process = subprocess.Popen([sys.executable, *line], stdin=subprocess.PIPE, env=env)
    yield process
    process.kill()
    process.wait(10)


def equip(cluster: LocalCluster, name: str, gpus: str, apps: str | None = None) -> None:
    env = fake.install(cluster.hostfile.parent / f"bin-{name}", gpus, apps)
    cluster.nodes[name] = LocalConnection(env)


def apps(*rows: tuple[int, int, int]) -> str:
    """(GPU, pid, MiB) as nvidia-smi lists them."""
    lines = [f"{UUIDS[gpu]}, {pid}, {mib} MiB, /opt/venv/bin/python" for gpu, pid, mib in rows]
    return "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n" + "".join(f"{x}\n" for x in lines)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(tmp_path, ["n1", "n2", "n3"])
    for name in cluster.nodes:
        equip(cluster, name, fake.h100(8))
    return patch(monkeypatch, cluster)


@pytest.mark.long
def test_processes_have_owner_run_rank_and_all_their_gpus(
    nodes: LocalCluster, worker: subprocess.Popen[bytes], capsys
) -> None:
    equip(nodes, "n2", fake.h100(8), apps((0, worker.pid, 1024), (3, worker.pid, 2048), (5, 4194300, 512)))  # fmt: skip
    nodes.kill("n3")
    assert cli.run(["gpus", "--processes", str(nodes.hostfile)]) == 3
    out = capsys.readouterr().out
    rows = [line.split() for line in out.partition("\n\n")[2].splitlines()]
    assert rows[0] == ["NODE", "GPU", "PID", "USER", "AGE", "MEM", "RUN", "RANK", "COMMAND"]
    assert rows[1][:3] == ["n2", "0,3", str(worker.pid)]
    assert rows[1][6:10] == ["3", "GiB", "run-7", "3"]
    assert rows[2][:4] == ["n2", "5", "4194300", "-"]
    assert "(not in /proc there)" in out
    assert "train.py" in out
    assert "hush" not in out


@pytest.mark.long
def test_json_lists_processes_across_nodes(
    nodes: LocalCluster, worker: subprocess.Popen[bytes], capsys
) -> None:
    equip(nodes, "n2", fake.h100(8), apps((3, worker.pid, 2048)))
    assert cli.run(["gpus", "--json", str(nodes.hostfile)]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["processes"]
    assert (row["node"], row["gpus"], row["pid"]) == ("n2", ["3"], worker.pid)
    assert (row["run"], row["rank"], row["used_bytes"]) == ("run-7", 3, 2048 << 20)
    assert document["nodes"][0]["power_w"] == pytest.approx(686.87, abs=1)
    assert document["hottest"]["temperature_c"] >= document["coldest"]["temperature_c"]


@pytest.mark.long
def test_memory_that_no_process_holds_is_flagged(nodes: LocalCluster, capsys) -> None:
    equip(nodes, "n2", fake.h100(8, busy=True))
    assert cli.run(["gpus", str(nodes.hostfile)]) == 0
    out = capsys.readouterr().out
    listed = "and no process is listed"
    assert f"GPU 0 holds 69.5 GiB, GPU 1 holds 69.5 GiB and 6 more, {listed}" in out


@pytest.mark.long
def test_profile_knows_what_the_majority_does_not(nodes: LocalCluster, tmp_path, capsys) -> None:
    for name in nodes.nodes:
        equip(nodes, name, fake.h100(7))
    assert cli.run(["gpus", str(nodes.hostfile)]) == 0
    profile = tmp_path / "good.toml"
    profile.write_text('[expected]\n"gpu.count_majority" = "8"\n')
    assert cli.run(["gpus", "--profile", str(profile), str(nodes.hostfile)]) == 1
    out, err = capsys.readouterr()
    assert "1 missing (the profile says 8)" in out
    assert "21 GPUs (expected 24)" in err


def test_options_that_need_watch_say_so(nodes: LocalCluster, capsys) -> None:
    assert cli.run(["gpus", "--for", "3", str(nodes.hostfile)]) == 2
    assert "--for goes with --watch" in capsys.readouterr().err


def start(folder: Path, *args: str, stdout=subprocess.PIPE, env=None) -> subprocess.Popen[bytes]:
    for name in ("n1", "n2"):
        fake.install(folder / f"bin-{name}", fake.h100(8))
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, str(folder), *args],
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE if stdout == subprocess.PIPE else stdout,
        env={**os.environ, **(env or {})},
        # A runner in the background of a shell has SIGINT ignored, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.long
def test_watch_into_a_pipe_is_blocks_until_interrupted(tmp_path: Path) -> None:
    process = start(tmp_path, "--interval", "0.5")
    try:
        assert process.stdout is not None
        text = b""
        # Two whole blocks, each at once; the first may come before the first answers.
        while b"n[1-2]" not in text.rpartition(b"\n\n")[0] or text.count(b"\n\n") < 2:
            ready, _, _ = select.select([process.stdout], [], [], 60)
            assert ready, text
            text += os.read(process.stdout.fileno(), 65536)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3  # a node is dead: that is more to tell than the Ctrl-C
    assert b"Traceback" not in err
    assert b"\x1b" not in text + rest
    block = next(one for one in text.decode().split("\n\n") if "n[1-2]" in one)
    assert block.splitlines()[-1].startswith("n3")
    assert "no answer: banner: the server sent nothing" in block


@pytest.mark.long
def test_watch_as_json_lines_for_a_while(tmp_path: Path) -> None:
    process = start(tmp_path, "--json", "--interval", "0.5", "--for", "0.8")
    out, err = process.communicate(timeout=120)
    looks = [json.loads(line) for line in out.splitlines()]
    assert len(looks) >= 1, err
    assert {look["type"] for look in looks} == {"look"}
    assert [node["node"] for node in looks[-1]["nodes"]] == ["n1", "n2", "n3"]
    assert process.returncode == 3


@pytest.mark.long
@pytest.mark.parametrize("color", [True, False])
def test_watch_on_a_terminal_is_a_page_that_fits(tmp_path: Path, color: bool) -> None:
    page = watch_in_terminal(tmp_path, 24, 80, {} if color else {"NO_COLOR": "1"})
    lines = page.splitlines()
    assert len(lines) <= 24
    assert re.match(
        r"\d\d:\d\d:\d\d  3 nodes, 16 GPUs \(expected 24, those of 1 node unknown\)",
        plain(lines[0]),
    )
    assert all(len(plain(line)) <= 80 for line in lines)
    assert any(line.startswith("n3") and line.endswith("...") for line in map(plain, lines))
    assert ("\x1b[" in page) == color


def watch_in_terminal(folder: Path, rows: int, columns: int, env: dict[str, str]) -> str:
    """The first page that --watch draws with all nodes' answers on it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = start(folder, "--interval", "0.5", stdout=theirs, env={"TERM": "xterm", **env})
    os.close(theirs)
    text, deadline = "", time.monotonic() + 60
    try:
        while not (pages := [one for one in text.split(HOME)[1:-1] if "16 GPUs" in one]):
            assert time.monotonic() < deadline, text
            ready, _, _ = select.select([ours], [], [], 1)
            text += os.read(ours, 65536).decode() if ready else ""
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)
    assert "Traceback" not in text
    return pages[0].replace("\r", "")


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)
