"""Files of a run directory that somebody else may have made: what is opened, and how much is read."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.runlog import run_files
from trainer.runlog.run_files import (
    LONGEST_LINE,
    Lines,
    Refused,
    lines,
    opened,
    opened_below,
    read_chosen,
)


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A folder with one of each kind that is no plain file, and a plain one."""
    folder = tmp_path / "run"
    (folder / "folder").mkdir(parents=True)
    (folder / "plain").write_text("a\nb")
    (folder / "folder" / "plain").write_text("c\n")
    (tmp_path / "outside").write_text("secret\n")
    (folder / "link").symlink_to("plain")
    (folder / "out").symlink_to(tmp_path)
    (folder / "nowhere").symlink_to("missing")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "socket"))
        yield folder


def test_only_plain_files_are_opened(odd: Path) -> None:
    assert list(lines(odd / "plain")) == [b"a", b"b"]
    for name, why in {"link": "a link", "nowhere": "a link", "pipe": "a pipe", "socket": "a socket", "folder": "a folder"}.items():  # fmt: skip
        with pytest.raises(Refused, match=f"{name}: it is {why}"), opened(odd / name):
            pass
    with pytest.raises(Refused, match="zero: it is a device"), opened(Path("/dev/zero")):
        pass
    with pytest.raises(FileNotFoundError), opened(odd / "missing"):
        pass
    with pytest.raises(Refused, match="belongs to user"), opened(odd / "plain", {12345}):
        pass


@pytest.mark.parametrize("name", ["out/outside", "../outside", "folder/../../outside", "{}/outside", "out", "link", "folder", "", "..", "plain/x"])  # fmt: skip
def test_no_name_leads_out_of_the_folder(odd: Path, name: str) -> None:
    with pytest.raises(OSError), opened_below(odd, name.format(odd.parent)):
        pass
    assert run_files.read_bytes(odd, "folder/plain") == b"c\n"


def test_whole_files_have_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert run_files.read_object(tmp_path, "a.json", 8) == {"a": 1}
    with pytest.raises(Refused, match="more than 7 bytes"):
        run_files.read_object(tmp_path, "a.json", 7)


def test_lines_of_a_growing_file_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    found, got = Lines(), list[bytes]()
    text = b"one\n\ntwo\n" + b"x" * 3_000_000 + b"\nthree\nfo"
    for end in (2, 4, 5, 9, 12, 1_500_000, 2_500_000, len(text)):
        path.write_bytes(text[:end])
        with path.open("rb") as file:
            got += [line for piece in found.pieces(file.fileno()) for line in piece]
    assert got == [b"one", b"", b"two", b"three"]
    assert (found.at, found.rest) == (len(text), b"fo")
    assert list(lines(path)) == [*got, b"fo"]


def test_last_lines_begin_with_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert [list(lines(path, last=last)) for last in (1, 5, 6, 7, 9, 10, 13, 14, 99)] == [
        [], [], [b"three"], [b"three"], [b"three"], [b"two", b"three"], *([[b"one", b"two", b"three"]] * 3),
    ]  # fmt: skip


@pytest.mark.timeout(20)
def test_holes_and_endless_lines_take_neither_memory_nor_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(1 << 42)  # four terabytes
        file.seek(1 << 41)
        file.write(b"\nwhole\n")
    assert list(lines(path)) == [b"whole"]
    with path.open("wb") as file:
        file.write(b"[" * (3 * LONGEST_LINE) + b"\nwhole\n" + b"[" * LONGEST_LINE + b"\n")
    assert [len(line) for line in lines(path)] == [5, LONGEST_LINE]


@pytest.mark.parametrize("name", ["link", "out", "nowhere", "folder", "pipe"])
def test_nothing_is_added_where_a_link_leads_or_nobody_reads(odd: Path, name: str) -> None:
    before = (odd / "plain").read_bytes()
    with pytest.raises(OSError):
        run_files.open_to_append(odd / name)
    assert (odd / "plain").read_bytes() == before
    assert not (odd / "missing").exists()


def test_chosen_file_may_be_a_link_or_a_pipe_and_has_a_longest_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    assert read_chosen(tmp_path / "link", 4) == b"text"
    with pytest.raises(Refused, match="more than 3 bytes"):
        read_chosen(tmp_path / "a", 3)
    for place in (Path("/dev/zero"), tmp_path):
        with pytest.raises(Refused, match="no plain file"):
            read_chosen(place)
    reader, writer = os.pipe()
    os.write(writer, b"begin ")
    with pytest.raises(Refused, match=r"has not ended it within 50 ms"):
        read_chosen(Path(f"/dev/fd/{reader}"), wait_s=0.05)
    os.write(writer, b"end")
    os.close(writer)
    assert read_chosen(Path(f"/dev/fd/{reader}")) == b"end"
    os.close(reader)
