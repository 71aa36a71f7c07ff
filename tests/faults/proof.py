"""What a run has trained on in the end, compared with a run that nothing has disturbed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.rig import CLIPS, Round
from trainer.runlog import telemetry

Samples = dict[tuple[int, int], tuple[int, int, tuple[int, ...], str]]


@dataclass(frozen=True)
class History:
    """The steps that are in the weights at the end, by (step, rank); losses by step."""

    samples: Samples
    losses: Mapping[int, float]
    checkpoint: str  # name of the last one
    digests: Mapping[str, str]  # of its files
    lost: int = 0  # lines that the run says it could not write


@dataclass(frozen=True)
class Compared:
    """`repeated` and `missed` count clips."""

    repeated: int = 0
    missed: int = 0
    wrong: tuple[str, ...] = ()


def step_of(checkpoint: str | None) -> int:
    found = re.search(r"global_step(\d+)$", checkpoint or "")
    return int(found[1]) if found else 0


def history(one: Round) -> History:
    """An attempt counts from the checkpoint it began from to the one that the next began from."""
    begins = {
        event["data"]["attempt"]: step_of(event["data"]["from"]) for event in one.events("attempt")
    }
    last = max(begins, default=1)

    def counts(attempt: int, step: int) -> bool:
        later = [begin for number, begin in begins.items() if number > attempt]
        return step > begins.get(attempt, 0) and step <= min(later, default=step)

    samples: Samples = {}
    for line in one.samples():
        if counts(line["attempt"], line["step"]):
            place = (line["epoch"], line["microbatch"], tuple(line["rows"]), line["digest"])
            samples[line["step"], line["rank"]] = place
    losses = {record.step: record.loss for record in one.steps()}  # the latest attempt's is last
    newest = max(one.checkpoints, key=lambda path: step_of(path.name), default=None)
    assert last >= 1
    made = digests(newest) if newest else {}
    return History(samples, losses, newest.name if newest else "", made, lines_lost(one))


def lines_lost(one: Round) -> int:
    """How many lines of telemetry could not be written, as the run says in it."""
    found = telemetry.read(one.run_dir) if one.run_dir.exists() else iter(())
    events = [one for one in found if isinstance(one, telemetry.Event) and one.name == "lost"]
    return sum(event.data["lines"] for event in events)


def digests(checkpoint: Path) -> dict[str, str]:
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(checkpoint)): hashlib.sha256(_content(path)).hexdigest()
        for path in files
    }


def _content(path: Path) -> bytes:
    """Of a manifest without its number: a run that has saved once more has counted further."""
    data = path.read_bytes()
    if path.name != "manifest.json":
        return data
    return json.dumps({**json.loads(data), "serial": None}, sort_keys=True).encode()


def compare(mine: History, undisturbed: History) -> Compared:
    """Of a run with as many ranks: samples, losses, and each file of the last checkpoint."""
    wrong = []
    missing = undisturbed.samples.keys() - mine.samples.keys()
    extra = mine.samples.keys() - undisturbed.samples.keys()
    both = mine.samples.keys() & undisturbed.samples.keys()
    other = [place for place in both if mine.samples[place] != undisturbed.samples[place]]
    if other:
        step, rank = min(other)
        wrong.append(f"{len(other)} steps of ranks had other samples, first {step} of rank {rank}")
    losses = [step for step, loss in undisturbed.losses.items() if mine.losses.get(step) != loss]
    unwritten = undisturbed.losses.keys() - mine.losses.keys()
    if len(unwritten) <= mine.lost:
        losses = [step for step in losses if step not in unwritten]
    if losses:
        wrong.append(f"{len(losses)} losses differ, first that of step {min(losses)}")
    if mine.checkpoint != undisturbed.checkpoint:
        wrong.append(f"the last checkpoint is {mine.checkpoint or 'none'}")
    elif mine.digests != undisturbed.digests:
        names = mine.digests.keys() | undisturbed.digests.keys()
        bad = sorted(n for n in names if mine.digests.get(n) != undisturbed.digests.get(n))
        wrong.append(f"the last checkpoint differs in {', '.join(bad)}")
    size = len(next(iter(undisturbed.samples.values()))[2])
    counted = count(mine, world=0)
    return Compared(counted.repeated + size * len(extra), size * len(missing), tuple(wrong))


def count(mine: History, world: int, left_out: int = 0) -> Compared:
    """Clips that were trained on twice in an epoch; with `world`, also those of whole epochs that
    were not: `left_out` microbatches at most may be, where the number of ranks has changed, and in
    each epoch those that fill no step of its ranks."""
    epochs: dict[int, list[int]] = {}
    ranks: dict[int, set[int]] = {}
    for (_, rank), (epoch, _, rows, _) in mine.samples.items():
        epochs.setdefault(epoch, []).extend(rows)
        ranks.setdefault(epoch, set()).add(rank)
    repeated = sum(len(rows) - len(set(rows)) for rows in epochs.values())
    if not world:
        return Compared(repeated)
    size = len(next(iter(mine.samples.values()))[2])
    missed = 0
    for epoch in epochs.keys() - {max(epochs)}:
        fill_no_step = CLIPS // size % len(ranks[epoch]) * size
        missed += CLIPS - fill_no_step - len(set(epochs[epoch]))
    steps = sorted({step for step, _ in mine.samples})
    wrong = () if steps == list(range(1, len(steps) + 1)) else ("steps are missing",)
    return Compared(repeated, max(0, missed - left_out * size), wrong)


def times(one: Round) -> dict[str, float | None]:
    """Seconds from the fault to its incident, and to the first step of the attempt after it."""
    after = [e for e in one.events("failure", "incident", "hang") if 0 < one.begun_s <= e["time_s"]]
    detected = after[0]["time_s"] - one.begun_s if after else None
    again = [e for e in one.events("attempt") if 0 < one.begun_s < e["time_s"]]
    first = [s for s in one.steps() if again and s.time_s > again[-1]["time_s"]]
    recovered = first[0].time_s - one.begun_s if first else None
    return {"detected_s": detected, "recovered_s": recovered}


def classes(incidents: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(one["class"]) for one in incidents)
