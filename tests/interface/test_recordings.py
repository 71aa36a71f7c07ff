"""Every command prints what is recorded in golden/; python -m tests.interface.record records anew."""

from __future__ import annotations

import pytest

from tests.interface.cases import all_cases
from tests.interface.transcript import GOLDEN, difference

CASES = all_cases()


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_prints_is_what_is_recorded(name: str) -> None:
    found = difference(name, CASES[name].play())
    if found:
        pytest.fail(f"{found}\n\nmeant so: python -m tests.interface.record {name}", pytrace=False)


def test_every_recording_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
