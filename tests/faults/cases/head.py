"""Faults of the head: its programs, its user, and two launches at once."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from tests.faults.fault import fault
from tests.faults.proof import step_of
from tests.faults.rig import Round, kill
from tests.faults.setting import Setting


def saved_at_the_end(one: Round) -> Iterable[str]:
    made = max((step_of(path.name) for path in one.run_dir.glob("epoch*")), default=0)
    last = max((record.step for record in one.steps()), default=0)
    if made != last:
        yield f"the last checkpoint is of step {made}, the last step was {last}"


@fault(
    "F18", "Ctrl-C at the head", "user-stop",
    exit_code=130, is_same=False, check=saved_at_the_end,
)  # fmt: skip
def interrupted(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.view.send_signal(signal.SIGINT)


@fault("F18-twice", "Ctrl-C twice at the head", "user-stop", exit_code=130, is_same=False)
def interrupted_twice(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.view.send_signal(signal.SIGINT)
    one.until("the first signal is taken", lambda: "once more" in one.said())
    one.view.send_signal(signal.SIGINT)


@fault("F19", "terminal of the launch lost")
def lost_terminal(one: Round) -> None:
    one.until_step(23)
    one.strike()
    one.view.kill()
    one.view.wait()
    one.attach()


@fault("F20", "supervisor killed")
def killed_supervisor(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.supervisor], signal.SIGKILL)
    code = one.end(20)
    if code != 3:
        one.notes.append(f"the launch ended with {code}, not 3")
    one.attach()


@fault(
    "F20-rank", "supervisor killed, then a rank, then attached", "signal-9", recovered_s=40.0
)  # fmt: skip
def killed_supervisor_and_rank(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.supervisor], signal.SIGKILL)
    one.end(20)
    kill([one.ranks[2]], signal.SIGKILL)
    one.attach()


def killed_and_attached(one: Round) -> None:
    """The supervisor; another one goes on."""
    kill([one.supervisor], signal.SIGKILL)
    one.end(20)
    one.attach()


def kill_a_rank(one: Round) -> None:
    one.until_step(23)
    one.strike()
    kill([one.ranks[2]], signal.SIGKILL)


@fault("F20-between", "supervisor killed between two attempts", "signal-9", recovered_s=40.0)
def killed_between_attempts(one: Round) -> None:
    kill_a_rank(one)
    one.until("a failure", lambda: one.events("restart"))
    killed_and_attached(one)


@fault("F20-rendezvous", "supervisor killed at a rendezvous", "signal-9", recovered_s=60.0)
def killed_at_a_rendezvous(one: Round) -> None:
    kill_a_rank(one)
    one.until("the next start", lambda: len(one.events("start")) > 1)
    killed_and_attached(one)


@fault("F20-save", "supervisor killed in a save")
def killed_in_a_save(one: Round) -> None:
    one.until_step(18)
    known = set(one.run_dir.iterdir())
    one.until("a save", lambda: [p for p in set(one.run_dir.iterdir()) - known if p.is_dir()])
    one.strike()
    killed_and_attached(one)


@fault("F23", "the same launched a second time", setting=Setting(steps=100))
def duplicate(one: Round) -> None:
    one.until_step(23)
    one.strike()
    second = one.command(*one.words(), name="second")
    code = second.wait(60)
    said = (one.directory / "second.txt").read_text()
    if code == 0 or one.run_id not in said:
        one.notes.append(f"the second ended with {code}: {said.strip()[-300:]}")
