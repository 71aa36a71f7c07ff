"""A step that an engine skips leaves every bit as it was, on two real ranks and for every engine."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.ports import free_port
from tests.trainer.guards import skip_ranks
from tests.trainer.guards.skip_ranks import KINDS, WITH_SKIPS
from tests.trainer.ranks import environment, fork, wait

LIMIT_S = 300  # a guard, not a measure: machines may be busy
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("skips")
    port = free_port()
    logs = [folder / f"{rank}.log" for rank in range(2)]
    processes = [
        fork(skip_ranks.main, folder, env=environment(rank, 2, port), log=logs[rank])
        for rank in range(2)
    ]
    codes = wait(processes, LIMIT_S)
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_masters_moments_and_counts_are_those_of_a_run_without_the_skipped_steps(
    ranks: list[dict[str, Any]], kind: str
) -> None:
    for said in ranks:
        plain, skips = said[kind]["plain"], said[kind]["skips"]
        assert skips["state"] == plain["state"]
        counted = plain["state"].get("steps")
        assert counted is None or set(counted.values()) == {3}  # DDP writes rank 0's only
    assert "steps" in ranks[0][kind]["plain"]["state"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_norm_is_the_same_on_all_ranks_and_that_of_the_taken_steps_is_unchanged(
    ranks: list[dict[str, Any]], kind: str
) -> None:
    first, second = (said[kind]["skips"]["norms"] for said in ranks)
    assert first == second
    norms = [float.fromhex(norm) for norm in first]
    taken = [norm for norm, (number, _, _) in zip(norms, WITH_SKIPS, strict=True) if number <= 3]
    plain = [float.fromhex(norm) for norm in ranks[0][kind]["plain"]["norms"]]
    assert taken[1:] == plain
    assert [math.isfinite(norm) for norm in norms] == [True, True, False, True, True, False, True]
