"""Replayed counts of NCCL: each is judged as it must be, and a wrong name is found."""

from __future__ import annotations

import pytest

from tests.causes import counts
from tests.causes.__main__ import summary
from tests.causes.state import CRASH, HANG, MISSED, NOT_MEASURED, RIGHT, WELL, WRONG, Answer


def test_each_is_judged_as_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("NODES", 3), ("RANKS", 24), ("GUILTY", 13)):
        monkeypatch.setattr(counts, name, fewer)
    found = [*counts.hangs(), *counts.healthy()]
    assert [one.result for one in found] == [RIGHT] * 6, [one.line for one in found]


@pytest.mark.parametrize(
    ("group", "results", "code"),
    [
        (CRASH, [RIGHT, RIGHT], 0),
        (HANG, [RIGHT, MISSED], 0),
        (HANG, [MISSED, MISSED], 1),
        (CRASH, [RIGHT, WRONG], 1),
        (WELL, [RIGHT, WRONG], 1),
        (CRASH, [RIGHT, NOT_MEASURED], 3),
    ],
)
def test_one_may_be_missed_and_none_may_be_wrong(group: str, results: list[str], code: int) -> None:
    assert summary([Answer(group, "x", one, "") for one in results]) == code
