"""Whatever one rank's call raises, no rank is left waiting: see `failing_calls`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainer.failing_calls import campaign, report


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    ("engine", "trials"),
    [
        ("colossal", 2),
        ("native", 1),
        pytest.param("colossal", 600, marks=pytest.mark.slow),
        pytest.param("native", 600, marks=pytest.mark.slow),
    ],
)
def test_no_call_that_fails_on_one_rank_leaves_the_other_waiting(
    tmp_path: Path, engine: str, trials: int
) -> None:
    counts = campaign(tmp_path, engine, trials, seed=0)
    print(report(counts), f"load {os.getloadavg()[0]:.1f}")
    assert counts.trials == trials
    assert counts.functions > 100
    assert (counts.hung, counts.broken, counts.tracebacks) == ([], [], []), report(counts)
