"""RAS answers of NCCL: samples of its guide, both formats, and texts that are no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.facts import RasAnswer, RasComm, Unknown
from checks.parsers.ras import parse_ras
from tests.checks.captures import FOLDER
from tests.clusterctl.stacks.ras_answers import OPERATIONS, Comm, as_json, as_text

FILES = sorted((FOLDER / "ras").iterdir())


def read(name: str) -> RasAnswer:
    found = parse_ras((FOLDER / "ras" / name).read_text())
    assert isinstance(found, RasAnswer), found
    return found


def only(answer: RasAnswer) -> RasComm:
    (comm,) = answer.comms
    return comm


def test_json_of_the_guide() -> None:
    found = read("missing-2.29.1.json")
    comm = only(found)
    assert (found.version, found.is_complete, comm.size) == ("2.29.1", True, 2)
    assert (comm.name, comm.key) == ("0xae94423cfbb2ef4a", "0xae94423cfbb2ef4a 0xb7e7187447156001:0xb8242ed28a71381e")  # fmt: skip
    (rank,) = comm.ranks
    assert (rank.rank, rank.host, rank.pid, rank.status) == (0, "172.16.64.245", 1524344, "RUNNING")
    assert rank.counts == dict.fromkeys(OPERATIONS, 0)
    (lost,) = comm.missing
    assert (lost.rank, lost.pid, lost.is_unresponsive, lost.is_dead) == (1, 1524345, True, False)


def test_different_counts_of_the_guide() -> None:
    found = read("mismatch-2.24.txt")
    comm = only(found)
    assert (found.version, found.processes, comm.size) == ("2.24.3", 32, 32)
    behind = [rank.rank for rank in comm.ranks if rank.counts == {"collective": 6649}]
    assert behind == [0, 2, 3, 4, 5, 7]
    ahead = [rank for rank in comm.ranks if rank.counts == {"collective": 6650}]
    assert len(ahead) == 26  # listed by number only
    assert (comm.ranks[3].host, comm.ranks[3].pid) == ("172.16.64.210", 483075)


def test_missing_rank_of_the_guide() -> None:
    found = read("incomplete-2.24.txt")
    assert found.timeouts == 2
    assert [(one.rank, one.is_unresponsive) for one in only(found).missing] == [(21, True)]


def test_communicator_that_ends() -> None:
    found = read("status-2.26.txt")
    status = {rank.rank: rank.status for rank in only(found).ranks}
    assert (status[4], status[20], status[0]) == ("FINALIZE", "FINALIZE", "RUNNING")
    assert found.others == {"MISMATCH": 1}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_indentation_that_the_payload_takes_away_means_nothing(file: Any) -> None:
    from clusterctl.payload.dump.ras import INDENT

    text = file.read_text()
    assert parse_ras(INDENT.sub(b"\n", text.encode()).decode()) == parse_ras(text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_answer_that_is_cut_anywhere_is_unknown(file: Any) -> None:
    text = file.read_text().rstrip()
    end = text.index("Warnings\n") if "Warnings\n" in text else len(text)
    for length in range(0, end, 7):
        assert isinstance(parse_ras(text[:length]), Unknown), length
    assert isinstance(parse_ras(text, is_cut=True), Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "ERROR: Unknown command verbose status", "HTTP/1.1 400 Bad Request\r\n\r\n", "[" * 100_000,
        "{" * 100_000, '{"a":' * 50_000, "{}", '{"communicators": 3, "nccl_version": "2"}', '{"communicators": [{}]}',
        '{"nccl_version": NaN, "communicators": []}', '{"nccl_version": "2.28", "communicators": [{"hash": 1, "size": 2, "ranks": []}]}',
        '{"nccl_version": "2.28", "communicators": [{"hash": "0x1", "size": "2", "ranks": []}]}',
        '{"nccl_version": "2.28", "communicators": [' + "1," * 500_000 + "1]}",
        "NCCL version 2.26.2 compiled with CUDA 12.6\nCommunicators... (0.00s)\n\x00\xff\nWarnin",
    ],
)  # fmt: skip
def test_text_that_is_no_answer_is_unknown(text: str) -> None:
    assert isinstance(parse_ras(text), Unknown)


@given(st.data())
def test_mutilated_answers_never_raise(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([file.read_text() for file in FILES]))
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    parse_ras(text[:start] + data.draw(st.text(max_size=20)) + text[start + length :])


@given(st.lists(st.lists(st.sampled_from([5, 6, 6, 6, 9]), min_size=2, max_size=9), min_size=1, max_size=4))  # fmt: skip
def test_both_formats_say_the_same(values: list[list[int]]) -> None:
    """Text shows different counts only, and no group of ranks that is as large as all others."""
    comms = [
        Comm(number + 1, [{"AllReduce": one} for one in counts], [("10.0.0.1", 100 + rank) for rank in range(len(counts))])
        for number, counts in enumerate(values)
    ]  # fmt: skip
    exact, shown = parse_ras(as_json(comms)), parse_ras(as_text(comms, 9))
    assert isinstance(exact, RasAnswer)
    assert isinstance(shown, RasAnswer)
    whole = {comm.name: {rank.rank: rank.counts["AllReduce"] for rank in comm.ranks} for comm in exact.comms}  # fmt: skip
    for comm in shown.comms:
        for rank in comm.ranks:
            assert rank.counts.get("AllReduce") in (None, whole[comm.name][rank.rank])
    uneven = {name for name, counts in whole.items() if len(set(counts.values())) > 1}
    assert {comm.name for comm in shown.comms} == uneven


def test_json_of_192_ranks_is_read_quickly() -> None:
    places = [("10.0.0.1", rank + 1) for rank in range(192)]
    text = as_json(Comm(n, [{"AllReduce": 1}] * 192, places) for n in range(3))
    found = parse_ras(json.dumps(json.loads(text)))
    assert isinstance(found, RasAnswer)
    assert [len(comm.ranks) for comm in found.comms] == [192] * 3


@pytest.mark.parametrize("to_text", [as_json, lambda comms: as_text(comms, 3)])
def test_nothing_of_an_answer_can_move_a_cursor(to_text: Any) -> None:
    counts = [{"AllReduce": 7 - (rank == 1)} for rank in range(3)]
    text = to_text([Comm(1, counts, [("10.0.0.1\x1b[2J", 5 + rank) for rank in range(3)])])
    found = parse_ras(text)
    assert isinstance(found, RasAnswer)
    shown = [rank.host or "" for comm in found.comms for rank in comm.ranks]
    assert "\x1b" not in "".join(shown)
