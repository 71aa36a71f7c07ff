"""Pushed data are put in place where other users can write too: in /tmp, say."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.remote import payload as ship
from clusterctl.transfer.push import _Counted, make_plan, packed
from tests.clusterctl.payload.local import LocalConnection

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's files")


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def ask(step: str, dest: Path, data: bytes, *, folder: bool = False, **more: Any) -> dict[str, Any]:
    args = {
        "step": step, "dest": str(dest), "folder": folder, "size": len(data), "mode": 0o644,
        "sha256": hashlib.sha256(data).hexdigest(), "token": "0123456789abcdef", **more,
    }  # fmt: skip
    return ship.probe(LocalConnection(), "push", args, 20)


def archive() -> bytes:
    """A folder with one file, as push packs it."""
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as tar:
        root, file = tarfile.TarInfo("."), tarfile.TarInfo("./key")
        root.type, root.mode, file.size, file.mode = tarfile.DIRTYPE, 0o755, 6, 0o600
        tar.addfile(root)
        tar.addfile(file, io.BytesIO(b"secret"))
    return kept.getvalue()


@pytest.mark.long
def test_folder_is_not_unpacked_into_what_another_has_put_there(open_to_all: Path) -> None:
    data, dest = archive(), open_to_all / "data"
    part = Path(ask("prepare", dest, data, folder=True)["part"])
    part.write_bytes(data)
    trap = open_to_all / "trap"
    trap.mkdir()
    part.with_name(part.name + ".new").symlink_to(trap)  # whoever lists the folder knows the name
    assert ask("install", dest, data, folder=True, part=str(part))["error"] is None
    assert (dest / "key").read_text() == "secret"
    assert list(trap.iterdir()) == []
    assert dest.stat().st_mode & 0o777 == 0o755


@needs_root
def test_names_that_another_user_takes_do_not_keep_data_away(open_to_all: Path) -> None:
    dest = open_to_all / "file"
    for name in ("1", "2"):
        stray = open_to_all / f".file.clusterctl-{name}"
        stray.symlink_to("/nowhere") if name == "1" else stray.mkdir()
        os.utime(stray, (0, 0), follow_symlinks=False)
        os.lchown(stray, NOBODY, NOBODY)
    assert "error" not in ask("prepare", dest, b"data")
    assert (open_to_all / ".file.clusterctl-2").exists()  # not ours to remove


@pytest.mark.long
@needs_root
def test_same_bytes_in_a_file_of_another_user_are_not_the_same_file(open_to_all: Path) -> None:
    dest = open_to_all / "file"
    dest.write_bytes(b"data")
    assert ask("prepare", dest, b"data")["same"] is True
    os.chown(dest, NOBODY, NOBODY)
    dest.chmod(0o644)
    assert "belongs to user 65534" in ask("prepare", dest, b"data")["error"]


@pytest.mark.long
@needs_root
def test_data_do_not_go_where_another_user_leads_them(open_to_all: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (open_to_all / "link").symlink_to(victim)
    assert "error" not in ask("prepare", open_to_all / "link" / "file", b"data")
    os.lchown(open_to_all / "link", NOBODY, NOBODY)
    for dest in (open_to_all / "link" / "file", open_to_all / "link" / "deeper" / "file"):
        assert "open to all" in ask("prepare", dest, b"data")["error"]
    assert not (victim / "deeper").exists()


def test_parts_of_a_killed_push_go_and_those_of_one_that_goes_on_stay(open_to_all: Path) -> None:
    dest, old_s = open_to_all / "big.bin", time.time() - 200

    def part(token: str, *, is_old: bool) -> Path:
        path = open_to_all / f".big.bin.clusterctl-{token}"
        path.write_bytes(b"half")
        if is_old:
            os.utime(path, (old_s, old_s))
        return path

    killed, sends = part("00", is_old=True), part("11", is_old=False)
    unpacks, other = part("22", is_old=True), open_to_all / ".big.bin.clusterctl"
    half = open_to_all / ".big.bin.clusterctl-00.aa"  # of the killed one: it had begun to unpack
    beside = open_to_all / ".big.bin.clusterctl-22.bb"
    for folder in (half, beside):
        folder.mkdir()
        os.utime(folder, (old_s, old_s))
    other.write_bytes(b"of the user")
    os.utime(other, (old_s, old_s))
    with unpacks.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine = Path(ask("prepare", dest, b"data")["part"])
    assert {path for path in (killed, sends, unpacks, other, beside) if path.exists()} == {
        sends, unpacks, other, beside,
    }  # fmt: skip
    ask("prepare", dest, b"data", token="33")
    assert not any(path.exists() for path in (killed, half, unpacks))
    assert (mine.exists(), sends.exists()) == (True, True)


def test_an_interrupted_push_sends_no_more_and_waits_for_its_parts(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"data")
    with packed(make_plan(source, "/x")) as parcel, _Counted(parcel, "n1") as file:
        assert file.read(2) == b"da"
        parcel.under_way.add("n1")
        ends = threading.Thread(target=parcel.end)
        ends.start()
        while not parcel.is_ended:
            time.sleep(0.001)
        with pytest.raises(InterruptedError):
            file.read(2)
        assert ends.is_alive()
        parcel.under_way.discard("n1")
        ends.join(5)
        assert not ends.is_alive()
