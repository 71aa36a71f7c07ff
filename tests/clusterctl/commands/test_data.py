"""clusterctl data: the work of two nodes is one manifest, also when one of them is lost or wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.cli import run
from clusterctl.manifests import verbs as data
from tests.clusterctl.commands.local_cluster import LocalCluster, patch
from trainer.data import digits
from trainer.data.__main__ import main as tools

# A node's python: answers as the word for its NODE says, without reading a file. `second` says nothing
# before the other node has come to its trouble, so that no test depends on who is faster.
FAKE = """
import json, os, sys, time
how, trouble = json.load(open({how!r}))[os.environ["NODE"]], {how!r} + ".trouble"
if how == "no module":
    open(trouble, "w").close()
    sys.exit("No module named trainer")
print(json.dumps({{"ready": True, "workers": 2}}), flush=True)
for number, line in enumerate(sys.stdin):
    question = json.loads(line)
    answer = {{"id": question["id"], "num_frames": 9, "height": 64, "width": 64, "fps": 8.0, "bytes": 1}}
    if how != "second" and number == 4:
        open(trouble, "w").close()
    if how == "dies" and number == 4:
        sys.exit(3)
    if how == "hangs" and number == 4:
        os.kill(os.getppid(), 19)  # its payload, which sends the signs of life
        time.sleep(600)
    if how == "sleeps":
        open(trouble, "w").close()
        time.sleep(600)
    while how == "second" and not os.path.exists(trouble):
        open({how!r} + ".asked" + str(os.getpid()), "w").close()
        time.sleep(0.02)
    if how == "no mount" or (how == "one" and question["path"].endswith("00007.mp4")):
        answer = {{"id": question["id"], "error": "No such file or directory"}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    digits.make(folder, clips=70, seed=1)
    return folder


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    return patch(monkeypatch, LocalCluster(tmp_path, ["node-1", "node-2"]))


def fake(folder: Path, **how: str) -> str:
    (folder / "how.json.trouble").unlink(missing_ok=True)
    words = {f"node-{number}": how.get(f"node_{number}", "fine") for number in (1, 2)}
    (folder / "how.json").write_text(json.dumps(words))
    program, path = folder / "node_python.py", folder / "python"
    program.write_text(FAKE.format(how=str(folder / "how.json")))
    # Not in the program's first line: a path there must not have a space.
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(program)])} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def second(folder: Path, node_2: str) -> str:
    return fake(folder, node_1="second", node_2=node_2)


def probe(cluster: LocalCluster, clips: Path, tmp_path: Path, *more: str) -> tuple[int, Path]:
    out = tmp_path / "out.csv"
    source = str(clips / digits.MANIFEST)
    return run(["data", "probe", str(cluster.hostfile), source, "--out", str(out), *more]), out


@pytest.fixture(scope="module")
def want(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one machine makes, in a folder beside the one of a test: paths are relative to OUT's."""
    alone = tmp_path_factory.mktemp("alone") / "out.csv"
    source = str(clips / digits.MANIFEST)
    assert tools(["probe", source, str(alone), "--workers", "1", "-q"]) == 0
    return alone.read_bytes()


@pytest.mark.long
def test_two_nodes_make_the_manifest_that_one_machine_makes(cluster, clips, tmp_path, want, capfd):
    code, out = probe(cluster, clips, tmp_path, "--workers", "1")
    assert code == 0
    assert out.read_bytes() == want
    printed = capfd.readouterr()
    assert "out.csv: 70 rows" in printed.out
    assert "answers: node-1 " in printed.err
    words = ["data", "check", str(cluster.hostfile), str(out), "--json"]
    (clips / "clips/00003.mp4").rename(clips / "away.mp4")
    try:
        assert run([*words, "--workers", "1"]) == 1
    finally:
        (clips / "away.mp4").rename(clips / "clips/00003.mp4")
    document = json.loads(capfd.readouterr().out)
    assert document["out"] == str(tmp_path / "out.checked.csv")
    assert document["report"]["ok"] == 69
    assert document["report"]["reasons"] == {"No such file or directory": 1}
    assert sum(node["answered"] for node in document["nodes"]) == 71  # the bad one by both
    (clips / "clips/00003.mp4").rename(clips / "away.mp4")
    try:
        code, _ = probe(cluster, clips, tmp_path, "--workers", "1", "--json", "--force")
    finally:
        (clips / "away.mp4").rename(clips / "clips/00003.mp4")
    report = json.loads(capfd.readouterr().out)["report"]
    assert (code, report["command"], report["rows"], len(report["left_out"])) == (1, "probe", 69, 1)
    assert report["left_out"][0]["line"] == 5
    assert "No such file" in report["left_out"][0]["reason"]


def test_columns_of_other_names_are_taken_on_nodes_too(cluster, clips, tmp_path, want, capfd):
    source = clips / "others.csv"
    header, _, rows = (clips / digits.MANIFEST).read_text().partition("\n")
    names = header.replace("path", "the file").replace("text", "caption")
    source.write_text(f"{names}\n{rows}")
    out, python = tmp_path / "out.csv", fake(tmp_path)
    words = ["data", "probe", str(cluster.hostfile), str(source), "--out", str(out)]
    words += ["--python", python]
    assert run(words) == 2  # its hint has the words that it takes
    assert "no column 'path'" in capfd.readouterr().err
    assert run([*words, "--columns", "path=the file,text=caption"]) == 0
    assert out.read_text().splitlines()[0].startswith("path,text,num_frames")
    assert run([*words[:1], "check", *words[2:], "--columns", "openvid"]) == 2
    assert "--columns is for probe" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("how", ["dies", "no module"])
def test_part_of_a_lost_node_goes_to_the_other(cluster, clips, tmp_path, want, how, capfd):
    code, out = probe(cluster, clips, tmp_path, "--python", second(tmp_path, how))
    assert code == 3
    assert out.read_bytes() == want
    said = capfd.readouterr().err
    assert "node-2 is lost" in said
    assert "its part goes to the other 1" in said
    assert ("ended with code 3" if how == "dies" else "No module named trainer") in said


@pytest.mark.slow
def test_silent_node_is_lost_after_its_time(cluster, clips, tmp_path, want, monkeypatch, capfd):
    """A node whose payload is stopped sends no sign of life."""
    monkeypatch.setattr(data, "SILENT_S", 8.0)
    python = second(tmp_path, "hangs")
    code, out = probe(cluster, clips, tmp_path, "--python", python)
    assert code == 3
    assert out.read_bytes() == want
    assert "node-2 is lost: no message for 8 s" in capfd.readouterr().err


@pytest.mark.long
def test_unreachable_node_is_told_and_the_rest_is_done(cluster, clips, tmp_path, want, capfd):
    cluster.kill("node-1")
    code, out = probe(cluster, clips, tmp_path, "--python", fake(tmp_path))
    assert code == 3
    assert out.read_bytes() == want
    assert "node-1 is lost: banner: the server sent nothing" in capfd.readouterr().err


@pytest.mark.long
def test_missing_mount_of_one_node_makes_no_clip_bad(cluster, clips, tmp_path, want, capfd):
    code, out = probe(cluster, clips, tmp_path, "--python", second(tmp_path, "no mount"))
    assert out.read_bytes() == want
    assert code == 3
    assert "node-2 is lost: it cannot read files that other nodes can" in capfd.readouterr().err


@pytest.mark.long
def test_clip_that_no_node_can_read_is_left_out(cluster, clips, tmp_path, want, capfd):
    python = fake(tmp_path, node_1="one", node_2="one")
    code, out = probe(cluster, clips, tmp_path, "--python", python)
    assert code == 1
    assert len(out.read_bytes().splitlines()) == len(want.splitlines()) - 1
    assert f"line 9: {clips}/clips/00007.mp4: No such file" in capfd.readouterr().err


@pytest.mark.long
def test_no_node_with_the_environment_says_what_to_do_and_keeps_what_is_done(
    cluster, clips, tmp_path, want, capfd
):
    python = fake(tmp_path, node_1="dies", node_2="dies")
    code, out = probe(cluster, clips, tmp_path, "--python", python)
    assert code == 3
    assert not out.exists()
    said = capfd.readouterr().err
    assert "no node is left that can read the files" in said
    assert "docs/guide/install.md" in said
    code, _ = probe(cluster, clips, tmp_path, "--python", fake(tmp_path))
    assert code == 0
    assert out.read_bytes() == want
    code, _ = probe(cluster, clips, tmp_path, "--python", str(tmp_path / "nowhere"))
    assert code == 2  # out.csv is there already
    assert run(["data", "probe", str(cluster.hostfile), "x.csv", "--python", "python3"]) == 2


@pytest.mark.slow
def test_over_real_ssh_the_bytes_are_the_same_and_no_process_is_left(
    cluster, clips, tmp_path, want
):
    """The command is a process of its own here, over the real thing: two ssh servers."""
    from clusterctl.transport.loopback.nodes import LoopbackCluster

    out = tmp_path / "out.csv"
    with LoopbackCluster(["node-1", "node-2"], tmp_path / "loop") as nodes:
        words = [sys.executable, "-m", "clusterctl", "data", "probe", str(nodes.hostfile)]
        words += [str(clips / digits.MANIFEST), "--out", str(out), "--workers", "1"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() == want
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_ours(pid, str(clips))]  # noqa: PTH208
    assert left == []


@pytest.mark.slow
def test_nobody_is_lost_while_this_program_was_stopped(clips, tmp_path, want):
    """Ctrl-Z for longer than the silence that loses a node: what nodes said meanwhile is still to come."""
    from clusterctl.transport.loopback.nodes import LoopbackCluster

    python, out = second(tmp_path, "second"), tmp_path / "out.csv"
    with LoopbackCluster(["node-1", "node-2"], tmp_path / "loop", {"NODE": "node-1"}) as nodes:
        code = "import sys; from clusterctl import cli; from clusterctl.manifests import verbs as data; data.SILENT_S = 3.5; sys.exit(cli.run(sys.argv[1:]))"  # fmt: skip
        words = [sys.executable, "-c", code, "data", "probe", str(nodes.hostfile)]
        words += [str(clips / digits.MANIFEST), "--out", str(out), "--python", python]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            # The head has heard of both, so both may be found silent.
            wait_for(lambda: len(list(tmp_path.glob("how.json.asked*"))) == 2)
            process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            wait_for(lambda: time.monotonic() - stopped > 4.5)
            (tmp_path / "how.json.trouble").touch()
            process.send_signal(signal.SIGCONT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "is lost" not in said
    assert out.read_bytes() == want


@pytest.mark.long
def test_interrupt_ends_everything_on_the_nodes(clips, tmp_path):
    from clusterctl.transport.loopback.nodes import LoopbackCluster

    python = fake(tmp_path, node_1="sleeps")
    with LoopbackCluster(["node-1", "node-2"], tmp_path / "loop", {"NODE": "node-1"}) as nodes:
        words = [sys.executable, "-m", "clusterctl", "data", "probe", str(nodes.hostfile)]
        words += [
            str(clips / digits.MANIFEST),
            "--out",
            str(tmp_path / "o.csv"),
            "--python",
            python,
        ]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            wait_for((tmp_path / "how.json.trouble").exists)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, said = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == 130, said
        assert "Traceback" not in said, said
        assert "run the same command again" in said
        wait_for(lambda: not any(_is_ours(pid.name, python) for pid in Path("/proc").iterdir()))
    assert not (tmp_path / "o.csv").exists()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_ours(pid: str, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("words", [["a.json", "nodes.txt"], ["nodes.txt", "a.jsonl"]])
def test_a_table_of_another_kind_has_the_way_to_a_csv(words, capsys):
    assert run(["data", "probe", *words]) == 2
    said = capsys.readouterr().err
    assert f"{next(word for word in words if '.json' in word)} is not a manifest" in said
    assert "says how to make a csv of it" in said
