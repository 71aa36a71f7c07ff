"""Runs of another cluster and nodes without the runs' folder, on loopback nodes with real sftp."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.serve import begin as module
from clusterctl.serve.carry import Carrier
from clusterctl.serve.remote_run import RemoteRun, split
from clusterctl.serve.samplers import Samplers
from clusterctl.transfer import resume
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.loopback.nodes import LoopbackCluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.serve import stand_in
from tests.clusterctl.serve.serving import serve, videos, wait_for
from tests.clusterctl.serve.test_server import WHOLE

SIZE = 700_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    folder = tmp_path_factory.mktemp("nodes")
    with LoopbackCluster(["n1", "n2"], folder, {"HOME": str(folder)}) as cluster:
        yield cluster


def seal_with_weights(run: Path, step: int, *, damaged: bool = False) -> Path:
    checkpoint = stand_in.seal(run, step)
    files: dict[str, Any] = {"optimizer/rank-0.safetensors": {"size": 1, "sha256": "0" * 64}}
    for name in ("model", "ema"):
        (checkpoint / name).mkdir()
        data = os.urandom(SIZE)
        (checkpoint / name / "model.safetensors").write_bytes(data)
        digest = hashlib.sha256(b"" if damaged else data).hexdigest()
        files[f"{name}/model.safetensors"] = {"size": SIZE, "sha256": digest}
    (checkpoint / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
    return checkpoint


def test_a_run_of_another_cluster_is_sampled_and_its_weights_are_dropped(
    nodes: LoopbackCluster, tmp_path: Path
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "far/007-run")
    seal_with_weights(run, 10)
    far = f"n1:{run}"
    options: dict[str, Any] = {"nodes": nodes.hostfile, "only": "n2", "copies": tmp_path / "near"}
    assert serve(far, python=str(python), **options) == 0
    near = tmp_path / "near/n1-007-run"
    assert videos(near) == {"epoch0-global_step10": WHOLE}
    assert not (run / "samples").exists()
    wait_for(lambda: not (near / "epoch0-global_step10").exists())
    before = stand_in.made(tmp_path)
    assert serve(far, python=str(python), **options) == 0
    assert stand_in.made(tmp_path) == before
    assert not (near / "epoch0-global_step10").exists()  # nothing was fetched again


def test_a_damaged_file_of_another_cluster_is_named(
    nodes: LoopbackCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "far/007-run")
    seal_with_weights(run, 10, damaged=True)
    options: dict[str, Any] = {"nodes": nodes.hostfile, "only": "n2", "copies": tmp_path / "near"}
    assert serve(f"n1:{run}", python=str(python), **options) == 1
    assert "model.safetensors is damaged: its SHA-256 differs" in capfd.readouterr().err


def test_a_cut_transfer_goes_on_where_it_was(
    nodes: LoopbackCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stand_in.make_run(tmp_path / "far/007-run")
    checkpoint = seal_with_weights(run, 10)
    source = RemoteRun(_node(nodes, "n1"), str(run), tmp_path / "near", ParamikoTransport())
    partial = source.folder / ".fetch-epoch0-global_step10"
    data = (checkpoint / "ema/model.safetensors").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    (partial / "ema").mkdir(parents=True)
    (partial / "manifest.json").write_bytes((checkpoint / "manifest.json").read_bytes())
    part = partial / f"ema/.model.safetensors.{digest[:16]}.part"
    part.write_bytes(data[: SIZE // 2])
    began: list[int] = []

    def fetch(sftp: Any, remote: str, local: Path, *more: Any) -> None:
        began.append(part.stat().st_size if local.parent.name == "ema" else 0)
        real(sftp, remote, local, *more)

    real = resume.fetch
    monkeypatch.setattr(resume, "fetch", fetch)
    try:
        source.wants(["epoch0-global_step10"])
        source.start()
        wait_for(lambda: source.is_here("epoch0-global_step10"))
    finally:
        source.close()
    assert sorted(began) == [0, SIZE // 2]
    found = source.folder / "epoch0-global_step10"
    assert (found / "ema/model.safetensors").read_bytes() == data
    assert not (found / "optimizer").exists()


def test_a_host_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path)
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("n1 host=127.0.0.1 port=9\n")
    with pytest.raises(module.CouldNotFindOut, match=r"n1:007-run cannot be looked at: tcp"):
        serve("n1:/data/007-run", python=str(python), nodes=hostfile, copies=tmp_path / "near")


def test_a_node_without_the_folder_gets_weights_and_returns_videos(
    nodes: LoopbackCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node sees this machine's files, so its look at the token is made to fail."""
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run")
    seal_with_weights(run, 10)
    real = Samplers.__init__

    def blind(self: Samplers, cluster: Any, args: dict[str, Any], folders: list[Path]) -> None:
        tokens = [("/nowhere", token) for _, token in args["tokens"]]
        real(self, cluster, {**args, "tokens": tokens}, folders)

    monkeypatch.setattr(Samplers, "__init__", blind)
    assert serve(run, python=str(python), nodes=nodes.hostfile, only="n2") == 0
    assert videos(run) == {"epoch0-global_step10": WHOLE}
    made = [Path(line) for line in stand_in.made(tmp_path) if line.endswith(".mp4")]
    assert all(".cache/clusterctl-serve" in str(path) for path in made)
    assert len(made) == 5


def test_a_dead_node_is_named_and_the_others_make_all(
    nodes: LoopbackCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = stand_in.make(tmp_path)
    run = stand_in.make_run(tmp_path / "001-run", (10,))
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text(f"{nodes.hostfile.read_text()}n3 host=127.0.0.1 port=9\n")
    assert serve(run, python=str(python), nodes=hostfile) == 3
    assert videos(run) == {"epoch0-global_step10": WHOLE}
    assert "n3 is not used now and is tried again: tcp" in capfd.readouterr().err


def test_words_that_name_a_run_elsewhere(tmp_path: Path) -> None:
    assert split("me@host:/data/003-run") == ("me@host", "/data/003-run")
    assert split("host:runs/003") == ("host", "runs/003")
    for text in ("003-run", "/a:b/c", "host:", ":x", str(tmp_path)):
        assert split(text) is None


def _node(nodes: LoopbackCluster, name: str) -> Node:
    return next(one for one in module.read_hostfile(nodes.hostfile) if one.name == name)


def test_an_order_to_warm_up_brings_the_config_and_nothing_back(
    nodes: LoopbackCluster, tmp_path: Path
) -> None:
    run = stand_in.make_run(tmp_path / "001-run")
    node = _node(nodes, "n2")
    hello = {"shared": [False], "cache": str(tmp_path / "cache")}
    with closing(ParamikoTransport().connect(node, Limits(), Progress())) as connection:
        carrier = Carrier(node, connection, hello, [run], "a")
        request = {"run_dir": str(run), "own": True, "sample": {}}
        order = carrier.before({"op": "warm", "id": 1, "request": request})
        there = Path(order["request"]["run_dir"])
        assert (there / "config.json").read_bytes() == (run / "config.json").read_bytes()
        assert carrier.after({"id": 1, "warm": True}) == {"id": 1, "warm": True}


@pytest.mark.parametrize("kind", ["file", "folder", "manifest", "above"])
def test_nothing_from_outside_of_a_run_is_carried_to_a_node(
    nodes: LoopbackCluster, tmp_path: Path, kind: str
) -> None:
    run, home = stand_in.make_run(tmp_path / "007-run"), tmp_path / "home"
    checkpoint = seal_with_weights(run, 10)
    data = b"a secret of the victim"
    home.mkdir()
    (home / "secret").write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (home / "manifest.json").write_text(json.dumps({"files": {"model/secret": entry}}))
    if kind == "file":
        (checkpoint / "model" / "model.safetensors").unlink()
        (checkpoint / "model" / "model.safetensors").symlink_to(home / "secret")
    elif kind == "folder":
        (checkpoint / "model").rename(tmp_path / "before")
        (checkpoint / "model").symlink_to(home)
        (checkpoint / "manifest.json").write_text((home / "manifest.json").read_text())
    elif kind == "manifest":
        (checkpoint / "manifest.json").unlink()
        (checkpoint / "manifest.json").symlink_to(home / "manifest.json")
    else:
        files = {"model/../../../home/secret": entry}
        (checkpoint / "manifest.json").write_text(json.dumps({"files": files}))
    node = _node(nodes, "n1")
    with closing(ParamikoTransport().connect(node, Limits(), Progress())) as connection:
        hello = {"shared": [False], "cache": str(tmp_path / "cache")}
        carrier = Carrier(node, connection, hello, [run], "a")
        request = {
            "run_dir": str(run), "checkpoint": checkpoint.name, "preset": "a",
            "save_dir": str(run / "samples" / "a" / checkpoint.name),
        }  # fmt: skip
        with pytest.raises((OSError, TransportError), match=r"link|outside"):
            carrier.before({"op": "look", "id": 1, "request": request})
    there = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert there
    assert data not in [path.read_bytes() for path in there]


@pytest.mark.long
@pytest.mark.parametrize("names", [("n1", "n2"), ("n1", "n1")], ids=["nodes", "servers"])
def test_weights_that_two_send_to_one_home_at_once_arrive_whole(
    nodes: LoopbackCluster, tmp_path: Path, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may have one home on NFS, and two servers may follow a run."""
    run = stand_in.make_run(tmp_path / "007-run")
    checkpoint = seal_with_weights(run, 10)
    half = threading.Barrier(2)
    real = resume.put

    def put(sftp: Any, local: Path, remote: str, mark: str) -> None:
        """Both have begun the weights before either goes on."""
        if local.name == "model.safetensors":
            half.wait(20)
        real(sftp, local, remote, mark)

    monkeypatch.setattr(resume, "put", put)
    monkeypatch.setattr(resume, "CHUNK_BYTES", 4096)
    found: list[Path | Exception] = []

    def carry(name: str, word: str) -> None:
        node = _node(nodes, name)
        try:
            with closing(ParamikoTransport().connect(node, Limits(), Progress())) as connection:
                hello = {"shared": [False], "cache": str(tmp_path / "cache")}
                request = {
                    "run_dir": str(run), "checkpoint": checkpoint.name, "preset": "a",
                    "save_dir": str(run / "samples" / "a" / checkpoint.name),
                }  # fmt: skip
                carrier = Carrier(node, connection, hello, [run], word)
                order = carrier.before({"op": "look", "id": 1, "request": request})
                found.append(Path(order["request"]["run_dir"]))
        except (OSError, TransportError, threading.BrokenBarrierError) as error:
            found.append(error)

    threads = [
        threading.Thread(target=carry, args=(name, f"word{n}")) for n, name in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    weights = checkpoint / "model" / "model.safetensors"
    for there in found:
        assert isinstance(there, Path), there
        copy = there / checkpoint.name / "model" / "model.safetensors"
        assert copy.read_bytes() == weights.read_bytes()
        assert list(copy.parent.glob(".*")) == []
