"""A run that nothing is wrong with but its ssh connections, which are reset every minute."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from tests.faults.cases.nodes import reset_connections
from tests.faults.fault import Fault
from tests.faults.rig import Round
from tests.faults.setting import Setting

EVERY_S = 60.0
ALARMS = ("hang", "failure", "restart", "incident", "excluded", "waiting")


def no_alarm(one: Round) -> Iterable[str]:
    """The stop at the end is the first thing that is more than a connection."""
    raised = [event for event in one.events(*ALARMS) if event["time_s"] < one.begun_s]
    for event in raised:
        yield f"{event['event']}: {event['text']}"


def healthy(seconds: float) -> Fault:
    def inject(one: Round) -> None:
        one.until_step(5)
        end = time.monotonic() + seconds
        resets = 0
        while time.monotonic() < end:
            due = min(end, time.monotonic() + EVERY_S)
            one.until("a minute", lambda due=due: time.monotonic() >= due, 2 * EVERY_S)
            resets += bool(reset_connections(one))
        before = one.steps()[-1].step
        one.until("a step", lambda: one.steps()[-1].step > before)
        one.made.append(
            f"{resets} resets, {len(one.events('disconnected'))} connections made again"
        )
        one.strike()
        one.view.send_signal(signal.SIGINT)

    return Fault(
        "healthy",
        f"nothing for {seconds:g} s, connections reset every minute",
        inject,
        cause="user-stop",
        exit_code=130,
        is_same=False,
        setting=Setting(
            steps=10**6, config="epochs = 10**6\nckpt_every = 500\nkeep_checkpoints = 2\n"
        ),
        check=no_alarm,
    )
