"""`clusterctl push`: whole or not at all, on every node, over our own verified connection."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.errors import UsageError
from clusterctl.transfer import push
from clusterctl.transport.loopback.nodes import LoopbackCluster


@pytest.fixture(scope="module")
def one(module_loopback) -> LoopbackCluster:
    return module_loopback(1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with what folders have: an empty one, a link, a program, odd names, no end newline."""
    folder = tmp_path / "source"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a.txt").write_bytes(os.urandom(70_000))
    (folder / "deep" / "er" / "with space \u00fc '\".txt").write_text("odd")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o750)
    (folder / "link").symlink_to("a.txt")
    (folder / "nowhere").symlink_to("/does/not/exist")
    return folder


def run(cluster, *words: str) -> int:
    return cli.run(["push", "--yes", *words, str(cluster.hostfile)])


def tree(folder: Path) -> dict[str, object]:
    """All that is in a folder, by relative name."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        else:
            mode = path.stat().st_mode & 0o777
            found[name] = ("folder", mode) if path.is_dir() else (path.read_bytes(), mode)
    return found


def test_file_arrives_with_its_mode_and_is_not_sent_twice(
    one, source: Path, tmp_path: Path, capsys
) -> None:
    dest = tmp_path / "there" / "new" / "run.sh"
    assert run(one, str(source / "run.sh"), str(dest)) == 0
    assert tree(dest.parent) == {"run.sh": ((source / "run.sh").read_bytes(), 0o750)}
    assert capsys.readouterr().out.startswith("node-1: new")
    assert run(one, str(source / "run.sh"), str(dest), "--json") == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (node["state"], node["bytes_sent"], node["error"]) == ("same", 0, None)
    (source / "run.sh").write_text("changed")
    assert run(one, str(source / "run.sh"), f"{dest.parent}/") == 0
    assert dest.read_text() == "changed"
    assert list(dest.parent.iterdir()) == [dest]  # nothing half-way is left


def test_folder_replaces_the_old_one_as_a_whole(one, source: Path, tmp_path: Path, capsys) -> None:
    dest = tmp_path / "dest"
    assert run(one, str(source), str(dest)) == 0
    assert tree(dest) == tree(source)
    (source / "a.txt").unlink()
    (dest / "only here").write_text("old")
    assert run(one, str(source), str(dest)) == 0
    assert tree(dest) == tree(source)
    assert capsys.readouterr().out.splitlines()[-1].startswith("node-1: replaced")
    assert sorted(path.name for path in tmp_path.iterdir() if "clusterctl" in path.name) == []


def test_relative_destination_is_in_the_home_there(one, source: Path) -> None:
    name = f"clusterctl-push-test-{os.getpid()}"
    there = Path.home() / name / "a.txt"
    try:
        assert run(one, str(source / "a.txt"), f"{name}/") == 0
        assert there.read_bytes() == (source / "a.txt").read_bytes()
        assert run(one, str(source / "a.txt"), f"~/{name}/a.txt") == 0
    finally:
        there.unlink(missing_ok=True)
        there.parent.rmdir()


def test_link_at_the_destination_is_followed(one, source: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "current").symlink_to("real")
    assert run(one, str(source), str(tmp_path / "current")) == 0
    assert (tmp_path / "current").is_symlink()
    assert tree(tmp_path / "real") == tree(source)


@pytest.mark.parametrize(
    ("what", "words"), [("a.txt", "is a folder on the node"), ("deep", "is a file on the node")]
)
def test_kinds_are_not_exchanged(
    one, source: Path, tmp_path: Path, capsys, what: str, words: str
) -> None:
    dest = tmp_path / "dest"
    dest.write_text("x") if what == "deep" else dest.mkdir()
    assert run(one, str(source / what), str(dest)) == 1
    assert words in capsys.readouterr().out


def test_refusal_of_the_node_is_told_in_its_own_words(
    one, source: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(one, str(source / "a.txt"), str(tmp_path / "file" / "a.txt"), "--json") == 1
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["state"] == "failed"
    assert "Not a directory" in node["error"] or "File exists" in node["error"]


def test_what_arrives_damaged_is_not_put_in_place(
    one, source: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "dest"
    dest.write_text("old and good")
    monkeypatch.setattr(push, "sha256_of", lambda path: "0" * 64)
    assert run(one, str(source / "a.txt"), str(dest)) == 1
    assert "not what was sent (checksum)" in capsys.readouterr().out
    assert dest.read_text() == "old and good"
    assert [path.name for path in tmp_path.iterdir() if "clusterctl" in path.name] == []


def test_dry_run_prints_the_plan_and_connects_to_nobody(
    source: Path, tmp_path: Path, capsys
) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("n[1-3] host=192.0.2.1\n".replace(" host=192.0.2.1", ""))
    assert cli.run(["push", "--dry-run", str(source), "/data/x", str(hostfile)]) == 0
    err = capsys.readouterr().err
    assert f"push {source} (folder, 5 files" in err
    assert "on 3 nodes: n[1-3]" in err
    assert "the folder as a whole" in err
    assert cli.run(["push", "--dry-run", "--json", str(source), "/data/x", str(hostfile)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"] is True
    assert document["targets"] == ["n1", "n2", "n3"]


def test_without_a_terminal_it_needs_yes(one, source: Path, tmp_path: Path, capsys) -> None:
    assert cli.run(["push", str(source), str(tmp_path / "dest"), str(one.hostfile)]) == 4
    assert "--yes" in capsys.readouterr().err
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("dest", ["", ".", "..", "~", "a/.."])
def test_destinations_that_are_none(source: Path, dest: str) -> None:
    with pytest.raises(UsageError, match="is not a destination"):
        push.make_plan(source / "a.txt", dest)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        push.make_plan(tmp_path / "none", "/x")
    with socket.socket(socket.AF_UNIX) as pipe:
        pipe.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "socket", tmp_path):
            with pytest.raises(UsageError, match="neither a file"):
                push.make_plan(path, "/x")


@pytest.mark.long
@pytest.mark.lab
def test_all_nodes_get_it_and_a_dead_one_is_named(lab, source: Path, capsys) -> None:
    nodes = lab(4)
    nodes.nodes[2].kill_sshd()
    assert run(nodes, str(source), "/tmp/pushed", "--json") == 3
    found = {one["node"]: one for one in json.loads(capsys.readouterr().out)["nodes"]}
    assert list(found) == nodes.names
    assert found["node-3"]["unreachable"]["phase"] == "tcp"
    for node in nodes.nodes:
        if node.name != "node-3":
            assert found[node.name]["state"] == "new"
            assert tree(Path(f"/proc/{node.pid}/root/tmp/pushed")) == tree(source)
    owner = nodes.nodes[0].exec(["stat", "-c", "%U", "/tmp/pushed/a.txt"]).stdout
    assert owner == "root\n"


@pytest.mark.lab
def test_unknown_host_key_is_refused_by_fabric_s_transfer_too(lab, source: Path, capsys) -> None:
    nodes = lab(1)
    nodes.known_hosts.write_text("")
    assert run(nodes, str(source / "a.txt"), "/tmp/a.txt", "--json") == 3
    assert json.loads(capsys.readouterr().out)["nodes"][0]["unreachable"]["phase"] == "hostkey"
    assert nodes.nodes[0].exec(["ls", "/tmp/a.txt"]).returncode != 0


@pytest.mark.lab
def test_full_disk_leaves_the_old_file_and_no_part(lab, tmp_path: Path, capsys) -> None:
    nodes = lab(1)
    node = nodes.nodes[0]
    node.exec(["sh", "-c", "mkdir /tmp/small && mount -t tmpfs -o size=1m small /tmp/small && echo old > /tmp/small/a"])  # fmt: skip
    (tmp_path / "big").write_bytes(os.urandom(3 << 20))
    assert run(nodes, str(tmp_path / "big"), "/tmp/small/a") == 1
    assert "bytes free" in capsys.readouterr().out
    assert node.exec(["sh", "-c", "cat /tmp/small/a; ls -A /tmp/small"]).stdout == "old\na\n"


@pytest.mark.long
@pytest.mark.lab
def test_disk_that_fills_in_mid_transfer_leaves_no_part(
    lab, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = lab(1)
    node = nodes.nodes[0]
    node.exec(["sh", "-c", "mkdir /tmp/small && mount -t tmpfs -o size=4m small /tmp/small"])
    (tmp_path / "big").write_bytes(os.urandom(3 << 20))
    real = push._Counted.read

    def read(self: push._Counted, size: int | None = -1) -> bytes:
        if self.tell() == 0:  # somebody else takes the room that was free a moment ago
            node.exec(["sh", "-c", "head -c 2000000 /dev/zero > /tmp/small/other"])
        return real(self, size)

    monkeypatch.setattr(push._Counted, "read", read)
    assert run(nodes, str(tmp_path / "big"), "/tmp/small/a") == 1
    assert "node-1: " in capsys.readouterr().out
    assert node.exec(["ls", "-A", "/tmp/small"]).stdout == "other\n"


@pytest.mark.long
@pytest.mark.lab
def test_node_that_hangs_in_mid_transfer_is_given_up(
    lab, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "STALL_S", 1.0)
    nodes = lab(2)
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    real = push._Counted.read
    frozen: list[bool] = []

    def read(self: push._Counted, size: int = -1) -> bytes:
        data = real(self, size)
        if self._name == "node-2" and self._parcel.sent["node-2"] > 5 << 20 and not frozen:
            frozen.append(True)
            nodes.nodes[1].freeze()
        return data

    monkeypatch.setattr(push._Counted, "read", read)
    assert run(nodes, str(tmp_path / "big"), "/tmp/big", "--json") == 3
    found = json.loads(capsys.readouterr().out)["nodes"]
    assert found[0]["state"] == "new"
    assert found[1]["unreachable"]["phase"] == "command"
    assert "took no data for 1 s" in found[1]["unreachable"]["message"]
