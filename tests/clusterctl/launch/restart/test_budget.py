"""When a failed run is started again: budgets by cause, pauses, the user's limit."""

from __future__ import annotations

import pytest

from clusterctl.launch.causes.kinds import Cause, Evidence, Kind, Source
from clusterctl.launch.restart.budget import GIVEN_UP, Failure, decide

KILLED = Cause(Kind.SIGNAL, "9", "n1", 0)
LINE = Evidence(Source.RANK_LOG, "ValueError: no frames in step 12")
BROKEN = Cause(Kind.WORKER_EXCEPTION, "ValueError", "n1", 0, LINE)


def failed(root: Cause, *checkpoints: str | None) -> list[Failure]:
    return [Failure(root, checkpoint, has_trained=True) for checkpoint in checkpoints]


def test_first_failure_is_followed_by_an_attempt_at_once() -> None:
    decision = decide(failed(KILLED, None), None)
    assert (decision.is_restart, decision.pause_s) == (True, 0.0)


def test_root_that_comes_again_is_tried_three_times_without_a_checkpoint() -> None:
    assert decide(failed(KILLED, *["c1"] * 3), None).is_restart
    decision = decide(failed(KILLED, *["c1"] * 4), None)
    assert (decision.is_restart, decision.exit_code) == (False, GIVEN_UP)
    assert decision.text == "signal-9 has ended 4 attempts without a new checkpoint in between"


def test_deterministic_root_is_tried_once_more() -> None:
    assert decide(failed(BROKEN, "c1"), None).is_restart
    decision = decide(failed(BROKEN, "c1", "c1"), None)
    assert (decision.is_restart, decision.exit_code) == (False, GIVEN_UP)


def test_same_error_at_another_step_is_the_same_root() -> None:
    other = Cause(
        Kind.WORKER_EXCEPTION, "ValueError", "n2", 3,
        Evidence(Source.RANK_LOG, "ValueError: no frames in step 14"),
    )  # fmt: skip
    assert not decide([*failed(BROKEN, "c1"), *failed(other, "c1")], None).is_restart


def test_new_checkpoint_begins_the_count_anew() -> None:
    assert decide(failed(BROKEN, "c1", "c2", "c3", "c4"), None).is_restart
    many = failed(KILLED, *(f"c{number // 3}" for number in range(300)))
    assert decide(many, None).is_restart


def test_deterministic_root_before_the_first_step_is_not_tried_again() -> None:
    decision = decide([Failure(BROKEN)], None)
    assert (decision.is_restart, decision.exit_code) == (False, None)
    assert decision.text == "worker-exception before the first step would come again"
    assert decide([Failure(KILLED)], None).is_restart


def test_different_roots_in_turn_have_an_end() -> None:
    roots = [Cause(Kind.SIGNAL, str(number), "n1", 0) for number in range(1, 12)]
    failures = [Failure(root, "c1", has_trained=True) for root in roots]
    assert decide(failures[:10], None).is_restart
    assert decide(failures, None).exit_code == GIVEN_UP


def test_pauses_grow_and_have_a_limit() -> None:
    roots = [Cause(Kind.SIGNAL, str(number), "n1", 0) for number in range(1, 11)]
    failures = [Failure(root, "c1", has_trained=True) for root in roots]
    pauses = [decide(failures[:count], None).pause_s for count in range(1, 11)]
    assert pauses == [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(("limit", "count", "again"), [(0, 1, False), (1, 1, True), (1, 2, False)])
def test_limit_of_the_user_holds_whatever_is_saved(limit: int, count: int, again: bool) -> None:
    failures = failed(KILLED, *(f"c{number}" for number in range(count)))
    decision = decide(failures, limit)
    assert decision.is_restart is again
    assert decision.exit_code == (GIVEN_UP if limit and not again else None)


def test_users_stop_is_no_failure() -> None:
    assert not decide(failed(Cause(Kind.USER_STOP), "c1"), None).is_restart
