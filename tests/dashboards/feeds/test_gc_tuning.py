from __future__ import annotations

import gc

import pytest

from dashboards.feeds.ssh import SELDOM, collecting_rarely


@pytest.mark.long
def test_collector_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with collecting_rarely():
        assert gc.get_threshold() == SELDOM
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
