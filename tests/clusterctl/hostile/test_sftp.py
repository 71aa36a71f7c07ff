"""`clusterctl serve` fetches from a hostile node: what it says of sizes and folders takes nothing here."""

from __future__ import annotations

import json
import random
import struct
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from paramiko import SFTPError, SSHException

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.serve import remote_run
from clusterctl.serve.remote_run import RemoteRun
from clusterctl.transfer import resume
from tests.clusterctl.hostile import sftp
from tests.clusterctl.hostile.audit import nothing_done
from tests.clusterctl.hostile.campaign import TIMES, Cost

CONTENT = random.Random(3).randbytes(9_000_001)  # two blocks and a byte
BROKEN = (TransportError, SSHException, SFTPError, OSError, EOFError, struct.error, ValueError)


def fetched(answers: sftp.Answers, path: Path, most: int = 1 << 30) -> bytes:
    with sftp.serving(answers) as session, path.open("wb") as out:
        resume.get(session, "/x", out, most)
    return path.read_bytes()


def test_an_honest_file_comes_whole_also_from_where_it_was_cut(tmp_path: Path) -> None:
    assert fetched(sftp.honest(CONTENT, []), tmp_path / "a") == CONTENT
    digest = sha256(CONTENT).hexdigest()
    part = tmp_path / f".b.{digest[:16]}.part"
    part.write_bytes(CONTENT[:5_000_000])
    with sftp.serving(sftp.honest(CONTENT, [])) as session:
        resume.fetch(session, "/x", tmp_path / "b", len(CONTENT), digest)
        assert [one.filename for one in resume.entries(session, "/")] == []
    assert (tmp_path / "b").read_bytes() == CONTENT


def stating(size: int) -> sftp.Answers:
    """All of a file's bytes come, and more; its size is a lie."""

    def said(kind: int, number: int, body: bytes) -> bytes | None:
        if kind in (sftp.STAT, sftp.FSTAT):
            return sftp.answer(sftp.ATTRS, number, sftp.attributes(size))
        if kind == sftp.READ:
            return sftp.answer(sftp.DATA, number, sftp.text(b"x" * 900_000))
        return sftp.honest(b"", [])(kind, number, body)

    return said


@pytest.mark.parametrize("size", [1 << 60, (1 << 64) - 1, (1 << 30) + 1])
def test_a_size_that_no_video_has_is_refused_before_a_byte_is_asked_for(
    tmp_path: Path, size: int
) -> None:
    with pytest.raises(TransportError, match=r"has \d+ bytes, at most 1,073,741,824 are taken"):
        fetched(stating(size), tmp_path / "a")


def test_a_file_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "LEFT_FREE", 1 << 60)
    with pytest.raises(TransportError, match="the disk here is full"):
        fetched(stating(100), tmp_path / "a")


def test_more_than_was_asked_for_ends_the_session(tmp_path: Path) -> None:
    with pytest.raises(SSHException, match="more than was asked for"):
        fetched(stating(20_000_000), tmp_path / "a")


@pytest.mark.parametrize(
    "reply",
    [
        lambda number: sftp.listed(number, [b"epoch0-global_step%d" % n for n in range(500)]),
        lambda number: sftp.answer(sftp.NAME, number, b"\xff" * 4),  # 4 billion without a name
        lambda number: sftp.listed(number, []),
    ],
    ids=["long", "short", "empty"],
)
def test_a_folder_without_end_is_given_up(reply: Any) -> None:
    def said(kind: int, number: int, body: bytes) -> bytes | None:
        is_list = kind == sftp.READDIR
        return reply(number) if is_list else sftp.honest(b"", [])(kind, number, body)

    began_s = time.process_time()
    with (
        sftp.serving(said) as session,
        pytest.raises((TransportError, SSHException), match="lists"),
    ):
        resume.entries(session, "/x", 5000)
    assert time.process_time() - began_s < 10


@pytest.mark.parametrize(
    ("flood", "words"),
    [
        (sftp.answer(sftp.STATUS, 999, b"\0" * 4) * 50, "answers what was not asked"),
        (struct.pack(">I", 1 << 23) + b"x" * 9, "sent a packet of 8,388,608 bytes"),
    ],
)
def test_what_was_not_asked_ends_the_session(flood: bytes, words: str) -> None:
    with sftp.serving(lambda *_: flood) as session, pytest.raises(SSHException, match=words):
        session.stat("/x")


@pytest.mark.parametrize("flags", [1 << 31, (1 << 31) | 15, (1 << 32) - 1])
def test_a_file_with_four_billion_attributes_is_none(flags: int) -> None:
    """paramiko would read as many, an hour long, of a packet that has none."""
    sizes = {1: 8, 2: 8, 4: 4, 8: 8}
    known = b"\0" * sum(size for flag, size in sizes.items() if flags & flag)
    attributes = struct.pack(">I", flags) + known + struct.pack(">I", 0x302D6570)

    def said(kind: int, number: int, body: bytes) -> bytes | None:
        if kind == sftp.READDIR:
            return sftp.answer(
                sftp.NAME, number, struct.pack(">I", 1) + sftp.text(b"a") * 2 + attributes
            )
        is_asked = kind in (sftp.STAT, sftp.FSTAT)
        attributes_of = sftp.answer(sftp.ATTRS, number, attributes)
        return attributes_of if is_asked else sftp.honest(b"", [])(kind, number, body)

    for work in (
        lambda session: session.stat("/x"),
        lambda session: session.open("/x").stat(),
        lambda session: resume.entries(session, "/x", 5000),
    ):
        with (
            sftp.serving(said) as session,
            pytest.raises(SSHException, match="sent 808,281,456 attributes of a file"),
        ):
            work(session)


@pytest.mark.parametrize(
    "entry",
    [
        {"size": -1, "sha256": "0" * 64}, {"size": 1 << 60, "sha256": "0" * 64}, {"size": 1.5, "sha256": "0" * 64},
        {"size": True, "sha256": "0" * 64}, {"size": "1", "sha256": "0" * 64}, {"size": 1, "sha256": "../../x"},
        {"size": 1, "sha256": ""}, {"size": 1}, {}, None, [],
    ],
)  # fmt: skip
def test_a_manifest_with_other_sizes_or_sums_is_none(entry: Any) -> None:
    good = {"size": 1, "sha256": "0" * 64}
    assert remote_run._files(json.dumps({"files": {"model/a": good}}).encode()) == {
        "model/a": (1, "0" * 64)
    }
    with pytest.raises((ValueError, KeyError, TypeError)):
        remote_run._files(json.dumps({"files": {"model/a": entry}}).encode())


@pytest.mark.parametrize("name", ["model/../x", "model//x", "model/a\nb", "ema/..", "model/\x1bx"])
def test_a_manifest_that_names_other_places_is_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        remote_run._files(json.dumps({"files": {name: {"size": 1, "sha256": "0" * 64}}}).encode())


@pytest.mark.parametrize("times", TIMES)
def test_campaign(times: int, tmp_path: Path) -> None:
    """Whatever the server says, each call ends, and nothing is written elsewhere or grows."""
    names = [b"epoch0-global_step%d" % step for step in range(3)]
    inside, outside = tmp_path / "a/b/copies", tmp_path / "a"
    cost, seed = Cost("sftp"), 0
    while cost.answers < times:
        rng = random.Random(seed)
        with cost.conversation():
            run = RemoteRun(Node("evil"), "x/run", inside, None)  # type: ignore[arg-type]
            run.folder.mkdir(parents=True, exist_ok=True)
            run.wants(["epoch0-global_step1"])
            content = rng.choice(
                [b'{"files": {}}', b'{"sample": {}}', rng.randbytes(70_000), CONTENT]
            )
            for work in (
                run._look,
                run._fetch_next,
                lambda session: resume.fetch(session, "/x", inside / "f", 70_000, "0" * 64),
                lambda session: resume.remove_folder(session, "/x"),
                lambda session: resume.make_folders(session, "/x/y/z"),
            ):
                try:
                    lies = sftp.lying(rng, sftp.honest(content, names))
                    with nothing_done(), sftp.serving(lies) as session:
                        work(session)
                except (*BROKEN, resume.Damaged):
                    pass
        seed += 1
        if seed == 5:
            cost.forget_memory()
    cost.say()
    cost.check(most_mb=200)
    assert [path.name for path in outside.iterdir()] == ["b"]
    assert [path.name for path in (outside / "b").iterdir()] == ["copies"]
    assert [path.name for path in inside.iterdir() if path.is_dir()] == ["evil-run"]
