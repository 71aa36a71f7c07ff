"""Numbers on the trainer's command lines."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentTypeError

import pytest

from trainer.command_line import above_0, finite, whole


def test_numbers_that_are_meant_so() -> None:
    assert [whole()("0"), whole(1)("7"), whole(-1)("-1")] == [0, 7, -1]
    assert [above_0("0.5"), above_0("1e3"), finite("-2.5")] == [0.5, 1000.0, -2.5]


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "ten", "", "nan", "1e3"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be an integer of at least 1"):
        whole(1)(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "ten", ""])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be a number above 0"):
        above_0(text)


@pytest.mark.parametrize("text", ["nan", "-inf", "ten"])
def test_what_is_not_finite(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be a finite number"):
        finite(text)


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["bench", "demo", "--steps", "0"],
        ["infer", "demo", "--fps", "nan"],
        ["data", "stats", "a.csv", "--world", "0"],
        ["data", "check", "a.csv", "--clip-timeout-s", "nan"],
        ["data", "simulate", "openvid", "stage1", "--ranks", "-1"],
        ["data", "shard", "a.csv", "--rows", "0"],
        ["data", "encode", "demo", "out", "--shard-mb", "0"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_every_command_says_it_alike(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"trainer.{words[0]}", *words[1:]], capture_output=True, text=True
    )
    assert done.returncode == 2
    name = words[-2]
    assert f"argument {name}: {words[-1]!r} must be " in done.stderr
    assert "Traceback" not in done.stderr
