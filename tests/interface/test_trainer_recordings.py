"""Every tool of the trainer prints what is recorded; a file of its own, so that another worker may take it."""

from __future__ import annotations

import pytest

from tests.interface.test_recordings import CASES, compare


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("trainer.")])
def test_the_trainer_prints_what_is_recorded(name: str) -> None:
    compare(name)
