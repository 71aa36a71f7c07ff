"""What is kept of a run, and which of several deaths it failed of."""

from __future__ import annotations

from clusterctl.launch.deaths import Death, cause
from clusterctl.launch.state import EVENTS, RunState
from trainer.runlog.telemetry import Event


def death(rank: int, code: int | None, at_s: float, error: str | None = None) -> Death:
    return Death("node", rank, code, "", (), at_s, error)


def test_signal_is_a_cause_at_once() -> None:
    killed = death(1, -9, 10.0)
    assert cause([killed], 10.0) is killed


def test_exit_code_waits_a_moment_for_the_signal_that_drew_it_along() -> None:
    peer, killed = death(0, 1, 10.0, "no batch"), death(1, -11, 10.2)
    assert cause([peer], 10.1) is None
    assert cause([peer, killed], 10.2) is killed
    assert cause([peer], 10.4) is peer


def test_first_of_equals_is_the_cause() -> None:
    first, second = death(3, 7, 10.0), death(0, 1, 10.1)
    assert cause([first, second], 11.6) is first


def test_rank_whose_log_states_the_error_comes_before_one_that_says_nothing() -> None:
    silent, speaking = death(1, 1, 10.0), death(0, 1, 10.4, "no batch for step 1")
    assert cause([silent], 11.4) is None
    assert cause([silent, speaking], 10.5) is speaking
    assert cause([silent], 11.6) is silent


def test_rank_that_lost_its_peer_is_not_the_cause() -> None:
    lost = death(0, 1, 10.0, "RuntimeError: [../gloo/pair.cc:547] Connection closed by peer")
    silent, speaking = death(1, 3, 10.1), death(2, 1, 10.2, "out of memory")
    assert cause([lost], 10.5) is None
    assert cause([lost, silent], 11.6) is silent
    assert cause([lost, silent, speaking], 10.6) is speaking
    assert cause([lost], 11.6) is lost


def test_peers_that_an_agent_or_gloo_ended_are_not_the_cause() -> None:
    ended, aborted, left = death(0, -15, 9.0), death(1, -6, 9.1), death(2, 7, 9.05)
    assert cause([ended, aborted, left], 11.0) is left
    assert cause([ended], 9.5) is None
    assert cause([ended], 11.0) is ended


def test_end_that_nobody_saw_may_have_been_a_good_one() -> None:
    unseen = death(0, None, 9.0)
    assert cause([unseen], 1e9) is None
    assert cause([unseen], float("inf")) is unseen  # the starter says that something failed
    assert cause([], 1e9) is None


def test_newest_checkpoint_is_known_after_any_number_of_other_events() -> None:
    """By it a restart is known to get on: without, a run of weeks would be given up."""
    state = RunState()
    for number in range(3):
        state.add(Event("checkpoint", data={"path": f"/runs/1/epoch{number}"}))
    for _ in range(EVENTS):
        state.add(Event("reconnected"))
    assert state.checkpoint == "/runs/1/epoch2"
    assert len(state.events) == EVENTS
