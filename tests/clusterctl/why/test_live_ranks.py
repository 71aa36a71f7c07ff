"""The first cause of gloo ranks that crash now: what was recorded is still what torch writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.why.explain import explain_logs
from tests.clusterctl.why.crashing_ranks import SCENARIOS, run

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_first_cause_of_ranks_that_crash_now(tmp_path: Path, scenario: str) -> None:
    name, ranks = SCENARIOS[scenario]
    codes = run(tmp_path, scenario)
    assert any(codes.values()) is bool(name)
    verdict = explain_logs(tmp_path).verdict
    assert verdict is not None
    if name in ("", "unknown"):  # the logs alone prove nothing
        assert verdict.cause is None
    else:
        assert verdict.cause is not None
        assert verdict.cause.name == name
        assert verdict.cause.rank == (ranks[0] if len(ranks) == 1 else None)
