"""Going back to a checkpoint before a spike: which one, what data are skipped, how often.

The run continues with the microbatch after the last one that it has had, so all microbatches since
that checkpoint are skipped: the bad ones are among them, and no sample is repeated. PaLM (Chowdhery
et al. 2022, section 5.1) restarted about 100 steps before a spike and skipped 200 to 500 batches;
the same batches gave no spike from another state of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.errors import Diverged, TrainerError
from trainer.weights.checkpoints import step_of

MOST = 2  # rollbacks without getting past the step of the first


class RollBack(TrainerError):
    """The run must continue from a checkpoint before step `first`; raised on all ranks alike."""

    first = 0
    tries = 0  # rollbacks without getting past `point`, with this one
    point = 0  # a step


@dataclass(frozen=True, slots=True)
class Back:
    """A rollback, as the run that continues needs it."""

    source: Path
    place: Cursor  # where the data continue
    tries: int
    point: int
    text: str  # for people


def on_the_way(made: Iterable[Path]) -> list[Path]:
    """Of checkpoints in the order they were made, those that the newest one comes from: where a run
    went back, later steps made before are not among them."""
    way: list[Path] = []
    for path in made:
        while way and step_of(way[-1]) >= step_of(path):
            way.pop()
        way.append(path)
    return way


def choose(asked: RollBack, made: Iterable[Path], place: Cursor) -> Back:
    """The newest checkpoint before the spike. Raises `Diverged` where there is none."""
    older = [path for path in on_the_way(made) if step_of(path) < asked.first]
    if not older:
        raise Diverged(
            f"{asked}; there is no checkpoint of a step before {asked.first} to go back to",
            hint="resume with a smaller lr; ckpt_every and keep_checkpoints decide how many there "
            "are, and --guard-rollback false trains on",
        )
    source = older[-1]
    text = f"{asked}: back to {source.name}, rollback {asked.tries} of {MOST}; the data continue "
    text += f"in epoch {place.epoch} after {place.consumed} microbatches, those between are skipped"
    return Back(source, place, asked.tries, asked.point, text)


def between(plan: DataPlan, first: Cursor, last: Cursor, group: int) -> list[tuple[int, int, int]]:
    """Epoch, first and end of the microbatches from one place to another, in whole steps of
    `group`; the end is not among them."""
    found, at = [], first
    while at.epoch < last.epoch:
        found.append((at.epoch, at.consumed, at.consumed + plan.steps(at, group) * group))
        at = at.next_epoch()
    found.append((at.epoch, at.consumed, last.consumed))
    return [(epoch, begin, end) for epoch, begin, end in found if begin < end]
