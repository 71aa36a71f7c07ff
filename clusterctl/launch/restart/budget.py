"""Whether a run that has failed is started again: by its cause and by what it has saved. Pure.

The limits follow nvidia-resiliency-ext's restart agent: one more try for a cause that the same
input gives again, three for any other, counted from every new checkpoint on. A stop that was wrong
costs a person's attention, a try too many costs seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.units import counted
from clusterctl.launch.causes.kinds import Cause, Kind

TRIES, TRIES_DETERMINISTIC = 3, 1  # again after the same root, without a checkpoint in between
TRIES_IN_ALL = 10  # whatever the roots are, without a checkpoint in between
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
GIVEN_UP = 93  # the exit code: starting this once more does not help


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended. `checkpoint` is the newest whole one then, None without any."""

    root: Cause
    checkpoint: str | None = None
    has_trained: bool = False  # this run has taken a step, in whatever attempt


@dataclass(frozen=True, slots=True)
class Decision:
    """`text` says why, in a sentence for people. `pause_s` comes before the next attempt."""

    is_restart: bool
    text: str
    pause_s: float = 0.0
    exit_code: int | None = None  # where the run ends; None: that of the attempt


def decide(failures: Sequence[Failure], max_restarts: int | None) -> Decision:
    """What follows after the last of all failures of a run so far.

    `max_restarts` is the user's limit for the whole run, None without one.
    """
    last = failures[-1]
    root = last.root
    if root.kind == Kind.USER_STOP:
        return Decision(False, "stopped by the user")
    if max_restarts == 0:
        return Decision(False, "--max-restarts 0")
    if root.is_deterministic and not last.has_trained:
        return Decision(False, f"{root.name} before the first step would come again")
    if max_restarts is not None and len(failures) > max_restarts:
        limit = counted(max_restarts, "restart")
        return Decision(False, f"--max-restarts allows {limit}", exit_code=GIVEN_UP)
    stuck = _since_checkpoint(failures)
    alike = sum(one.root.signature == root.signature for one in stuck)
    allowed = TRIES_DETERMINISTIC if root.is_deterministic else TRIES
    without = "without a new checkpoint"
    if alike > allowed:
        text = f"{root.name} has ended {alike} attempts {without} in between"
        return Decision(False, text, exit_code=GIVEN_UP)
    if len(stuck) > TRIES_IN_ALL:
        text = f"{len(stuck)} attempts have failed {without} in between"
        return Decision(False, text, exit_code=GIVEN_UP)
    pause_s = 0.0
    if len(stuck) > 1:
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (len(stuck) - 2))
    text = f"after {root.name}"
    if len(stuck) > 1:
        text += f", failure {len(stuck)} {without}"
    return Decision(True, text, pause_s)


def _since_checkpoint(failures: Sequence[Failure]) -> Sequence[Failure]:
    """The last failures between which no checkpoint was written."""
    newest = failures[-1].checkpoint
    first = len(failures) - 1
    while first > 0 and failures[first - 1].checkpoint == newest:
        first -= 1
    return failures[first:]
