"""Which part of a log is read, and whose log a file is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.runs.logs.parts import Part
from clusterctl.why import rank_logs
from clusterctl.why.endings import end_of
from clusterctl.why.rank_logs import FAR, NEAR, of_folder, of_run, read_end


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def ranks(folder: Path) -> list[tuple[int | None, str]]:
    return [(log.rank, log.name) for log in of_folder(folder).ranks]


def test_rank_is_in_the_name(tmp_path: Path) -> None:
    write(tmp_path, **{"3": "a\n", "rank_12": "a\n", "worker-5": "a\n", "train": "a\n"})
    found = ranks(tmp_path)
    assert found == [(3, "3.log"), (5, "worker-5.log"), (12, "rank_12.log"), (None, "train.log")]


def test_last_attempt_of_torchrun_with_both_streams_of_a_rank(tmp_path: Path) -> None:
    for attempt in (0, 1):
        for rank in (0, 1):
            place = f"x__attempt_{attempt}__{rank}"
            write(tmp_path, **{f"{place}__stdout": "up\n", f"{place}__stderr": f"{attempt}\n"})
    found = of_folder(tmp_path).ranks
    assert [(log.rank, log.lines) for log in found] == [(0, ("up", "1")), (1, ("up", "1"))]


def test_same_number_on_two_nodes_is_no_rank(tmp_path: Path) -> None:
    write(tmp_path, n1__0="up\n", n2__0="ValueError: x\n", n2__1="up\n")
    assert ranks(tmp_path) == [(1, "n2/1.log"), (None, "n1/0.log"), (None, "n2/0.log")]


def test_marks_of_lines_tell_the_rank(tmp_path: Path) -> None:
    write(tmp_path, train="start\n[rank1]: ValueError: x\n[rank0]: up\n")
    assert [log.rank for log in of_folder(tmp_path).ranks] == [0, 1, None]


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, **{"0": "up\n"})
    (tmp_path / "1.log").symlink_to(tmp_path / "0.log")
    os.mkfifo(tmp_path / "2.log")
    found = of_folder(tmp_path)
    assert [log.rank for log in found.ranks] == [0]
    assert found.unread.keys() == {"1.log", "2.log"}


@pytest.mark.parametrize(
    ("flood", "is_found"), [(NEAR // 2, True), (NEAR * 3, True), (FAR + 2 * NEAR, False)]
)
def test_error_before_a_flood_is_searched_for_in_a_bounded_part(
    tmp_path: Path, flood: int, is_found: bool
) -> None:
    line = "[W1123 09:14:05.100 ProcessGroupGloo.cpp:88] Warning: a pair is open\n"
    own = "Traceback (most recent call last):\nValueError: clip 7\n"
    path = tmp_path / "0.log"
    path.write_text("step 1\n" * 100 + own + line * (flood // len(line)))
    with path.open("rb") as file:
        lines, searched = read_end(file.fileno(), Part(0, path.stat().st_size), 1 << 30)
        assert bool(end_of(lines)) is is_found
        assert searched <= FAR
        assert len("".join(lines)) <= 3 * NEAR
        assert read_end(file.fileno(), Part(0, path.stat().st_size), 0)[1] == 0


def test_each_attempt_has_its_part(tmp_path: Path) -> None:
    write(tmp_path, ranks__0="a\n--- attempt 2 ---\nb\n", ranks__1="a\n")
    one, two = (of_run(tmp_path, number, 2, {0: "n1"}) for number in (1, 2))
    assert [(log.rank, log.node, log.lines) for log in one.ranks] == [(0, "n1", ("a",)), (1, "", ("a",))]  # fmt: skip
    assert [(log.rank, log.lines) for log in two.ranks] == [(0, ("b",))]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\n", b"\n" * 99, b"x" * (3 * NEAR), b"a\r\nb"])
def test_odd_bytes_are_no_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "0.log").write_bytes(data)
    assert [end_of(log.lines) for log in of_folder(tmp_path).ranks] in ([()], [])


def test_number_of_a_process_is_no_rank_where_the_lines_name_other_ones(tmp_path: Path) -> None:
    one, other = "[rank0]: up\n[rank0]: ValueError: x\n", "[rank1]: up\n"
    write(tmp_path, **{"12345": one, "12346": other, "7": "[rank7]: up\n", "8": "up\n"})
    assert [log.rank for log in of_folder(tmp_path).ranks] == [0, 1, 7, 8]


def test_the_first_error_of_a_file_of_many_ranks_is_found_behind_many_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = "[rank7]: ValueError: the first\n"
    others = "".join(f"[rank{n % 7}]: RuntimeError: gave up after {n}\n" for n in range(3000))
    write(tmp_path, job=first + others)
    assert (tmp_path / "job.log").stat().st_size > NEAR
    found = of_folder(tmp_path)
    assert [log.rank for log in found.ranks] == [*range(8)]
    assert found.ranks[7].lines == ("[rank7]: ValueError: the first",)
    assert found.unread == {}
    write(tmp_path / "short", job="[rank7]: KeyError: 1\n" + "[rank0]: KeyError: 2\n" * 1500)
    assert (tmp_path / "short/job.log").stat().st_size < NEAR
    assert [log.rank for log in of_folder(tmp_path / "short").ranks] == [0, 7]
    (tmp_path / "short/job.log").unlink()
    monkeypatch.setattr(rank_logs, "MERGED", NEAR)
    found = of_folder(tmp_path)
    assert [log.rank for log in found.ranks] == [*range(7)]
    assert found.unread["job.log"].endswith("bytes (lines of several ranks)")


def test_what_is_not_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{f"{n:02}": "up\n" for n in range(12)}, a__b__c__d__e__f="up\n")
    monkeypatch.setattr(rank_logs, "MOST_FILES", 10)
    found = of_folder(tmp_path)
    assert len(found.ranks) == 10
    assert found.unread == {
        "a/b/c/d": "folders more than 4 levels down", "more logs": "10 of 12 are read",
    }  # fmt: skip


def test_an_error_before_many_short_lines_is_found(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "Traceback (most recent call last):\nValueError: x\n" + "up\n" * 3 * rank_logs.NEAR_LINES
    )
    (log,) = of_folder(tmp_path).ranks
    assert log.lines[:2] == ("Traceback (most recent call last):", "ValueError: x")
    assert len(log.lines) < 6 * rank_logs.NEAR_LINES
