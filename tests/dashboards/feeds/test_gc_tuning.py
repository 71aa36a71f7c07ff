from __future__ import annotations

import gc

from dashboards.feeds.gc_tuning import SELDOM, Seldom


def test_collector_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    seldom = Seldom()
    seldom.begin()
    seldom.begin()
    assert gc.get_threshold() == SELDOM
    seldom.end()
    seldom.end()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
