"""A node's report of stacks is believed only as far as it fits together and stays small when unfolded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterctl.errors import TransportError
from clusterctl.remote.messages.stacks import read_report

FRAME = ["main", "/job/train.py", "train.py", 7]


def report(**more: Any) -> bytes:
    look = {"state": "S", "threads": [[1, "MainThread", 0, False, False]]}
    node = {
        "hostname": "a",
        "boot_id": None,
        "python": "3.11.7",
        "time_s": 1.0,
        "boottime_s": 1.0,
        "user": "me",
    }
    whole = {
        "rows": [], "others": 0, "machine": "a", "node": node, "py_spy": None,
        "rights": {"uid": 0, "scope": None, "capable": True},
        "samples": [{"at_s": 0.1, "seconds": 0.1, "processes": {"1": look}}],
        "frames": [FRAME], "stacks": [[0]], "logs": {}, "flight": {}, "kernel": [], "kernel_cut_s": None,
        "open": {}, "source": {}, "late": [], "seconds": 1.0,
        "counters": {"ras": [], "addresses": [], "inner": {}, "gpus": None}, **more,
    }  # fmt: skip
    return json.dumps(whole).encode()


def sample(threads: list[Any]) -> list[Any]:
    return [{"at_s": 0.1, "seconds": 0.1, "processes": {"1": {"state": "S", "threads": threads}}}]


def test_report_that_fits_together_is_taken() -> None:
    assert read_report(report())["stacks"] == [[0]]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"stacks": [[1]]}, "of 1 frames"), ({"stacks": []}, "of 0 stacks"), ({"rows": 3}, "rows should be"),
        ({"samples": [{}]}, "at_s"), ({"frames": [["main"]]}, "frames"), ({"more": 1}, "more should be absent"),
        ({"seconds": -1}, "seconds"), ({"samples": sample([["1", "x", 0, False, False]])}, "threads"),
        ({"stacks": [[0] * 2000], "samples": sample([[n, "t", 0, False, False] for n in range(4000)])}, "300000 frames"),
    ],
)  # fmt: skip
def test_report_that_does_not_is_that_nodes_own_error(odd: dict[str, Any], why: str) -> None:
    with pytest.raises(TransportError, match=why) as caught:
        read_report(report(**odd))
    assert caught.value.phase == "parse"
