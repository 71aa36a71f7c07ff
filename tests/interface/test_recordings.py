"""Every command of clusterctl prints what is recorded; python -m tests.interface.record records anew."""

from __future__ import annotations

import pytest

from tests.interface.cases import all_cases
from tests.interface.transcript import GOLDEN, difference

CASES = all_cases()


def compare(name: str) -> None:
    """Fails with a diff where a command prints something else than what is recorded."""
    found = difference(name, CASES[name].play())
    if found:
        pytest.fail(f"{found}\n\nmeant so: python -m tests.interface.record {name}", pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("trainer.")])
def test_clusterctl_prints_what_is_recorded(name: str) -> None:
    compare(name)


def test_every_recording_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
