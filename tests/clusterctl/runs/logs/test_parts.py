"""Parts of log files: last lines, attempts, lines from either end; against plain Python."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.runs.logs import parts
from clusterctl.runs.logs.parts import (
    Part,
    attempt_part,
    last_lines,
    lines,
    lines_backward,
    marks_backward,
)

TEXTS = st.lists(st.sampled_from([b"", b"a", b"long " * 9, b"--- attempt 2 ---", b"x --- attempt 3 ---"]), max_size=30)  # fmt: skip


def opened(path: Path, data: bytes) -> tuple[int, Part]:
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY), Part(0, len(data))


def text(fd: int, part: Part | None) -> bytes | None:
    return None if part is None else os.pread(fd, part.end - part.begin, part.begin)


@pytest.mark.long
@given(TEXTS, st.booleans(), st.integers(0, 35), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_lines_are_those_of_split_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, whole: list[bytes], is_open: bool, count: int, block: int
) -> None:  # fmt: skip
    data = b"".join(line + b"\n" for line in whole) + (b"torn" if is_open else b"")
    expected = [*whole, b"torn"] if is_open else whole
    fd, part = opened(tmp_path_factory.mktemp("log") / "0.log", data)
    before = parts.BLOCK
    try:
        parts.BLOCK = block
        assert list(lines(fd, part)) == expected
        backward = list(lines_backward(fd, part))
        assert [line for _, line in reversed(backward)] == expected
        assert all(data[at : at + len(line)] == line for at, line in backward)
        wanted = expected[len(expected) - min(count, len(expected)) :]
        assert list(lines(fd, last_lines(fd, part, count))) == wanted
    finally:
        parts.BLOCK = before
        os.close(fd)


@pytest.mark.parametrize("block", [5, 16, 17, 64, 1 << 18])
def test_attempts_are_found_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(parts, "BLOCK", block)
    data = b"one\nsaid --- attempt 9 ---\n--- attempt 2 ---\ntwo\nzwei\n--- attempt 4 ---\nfour"
    fd, part = opened(tmp_path / "0.log", data)
    assert [mark for _, mark in marks_backward(fd, part.end)] == [4, 2]
    found = [text(fd, attempt_part(fd, part.end, number, newest=5)) for number in range(1, 6)]
    assert found == [b"one\nsaid --- attempt 9 ---\n", b"two\nzwei\n", None, b"four", None]
    assert text(fd, attempt_part(fd, part.end, 1, newest=1)) == data
    os.close(fd)


def test_line_without_an_end_of_many_megabytes_comes_in_pieces(tmp_path: Path) -> None:
    fd, part = opened(tmp_path / "0.log", b"x" * (5 << 20) + b"\nlast\n")
    found = list(lines(fd, part))
    assert max(map(len, found)) <= parts.LONGEST
    assert b"".join(found) == b"x" * (5 << 20) + b"last"
    backward = list(lines_backward(fd, part))
    assert backward[0] == ((5 << 20) + 1, b"last")
    assert backward[1] == (0, b"x" * parts.LONGEST)
    os.close(fd)


def test_a_sparse_file_of_terabytes_is_looked_through_at_once(tmp_path: Path) -> None:
    """It costs nobody anything to make one."""
    path, far = tmp_path / "0.log", 1 << 40
    with path.open("wb") as file:
        for at in (0, far // 2, far):
            file.seek(at)
            file.write(b"first\n--- attempt 2 ---\nlast\n")
        file.truncate(2 * far)
    fd = os.open(path, os.O_RDONLY)
    began_s = time.process_time()
    try:
        size = os.fstat(fd).st_size
        marks = [(at + 6, 2) for at in (far, far // 2, 0)]
        assert list(parts.marks_backward(fd, size)) == marks
        found = [
            (at, line[:20])
            for at, line in parts.lines_backward(fd, Part(0, size))
            if line.strip(b"\0")
        ]
        assert [at for at, line in found if line.startswith(b"last")] == [
            far + 24,
            far // 2 + 24,
            24,
        ]
        assert [at for at, line in found if line.startswith(b"---")] == [at for at, _ in marks]
        assert attempt_part(fd, size, 2, 2) == Part(far + 24, size)
    finally:
        os.close(fd)
    assert time.process_time() - began_s < 2
