"""A hundred resumes, simulated on the plan and real over gloo: nothing repeated, missed or different."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import REPO, Done
from tests.trainer.simulated_resumes import Counts, campaign
from trainer.data.digits import main as render
from trainer.runlog.telemetry import StepRecord, read

EPOCHS, WORLDS = 3, (1, 2, 3, 4)
LIMIT_S = 3000
# Two kinds of microbatches of unlike cost, so that balancing moves them; 19 or so in an epoch.
CONFIG = f"""
_base_ = {str(REPO / "trainer/configs/demo.py")!r}
bucket_config = {{"16px": {{8: ((1.0, 0.5), 2), 4: (1.0, 3)}}}}
model = dict(hidden_size=32, num_heads=2, depth=1)
dataset = dict(balance_window=4)
warmup_steps = 2
max_steps = None
lr_schedule = None
epochs = {EPOCHS}
ckpt_every = 0
"""


@pytest.mark.long
def test_100_random_resumes_of_1_to_16_simulated_ranks_lose_and_repeat_nothing() -> None:
    counts = campaign(100, seed=0)
    print(counts)
    assert counts.microbatches > 2000
    assert counts == Counts(resumes=100, microbatches=counts.microbatches)


@dataclass(frozen=True)
class Whole:
    """A run that was never stopped: per step what its ranks trained on, and its losses."""

    world: int
    folder: Path
    done: list[Done]

    @property
    def steps(self) -> int:
        return len(self.done[0].rows)

    def epoch(self, step: int) -> int:
        """Of the step with this number, first is 1."""
        return self.done[0].seen[step - 1][0]

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"epoch{self.epoch(step)}-global_step{step}"


def losses(run_dir: Path) -> dict[int, float]:
    return {r.step: r.loss for r in read(run_dir) if isinstance(r, StepRecord)}


def microbatches(done: Sequence[Done], epoch: int) -> list[tuple[tuple[int, ...], str]]:
    """Rows and digest of what all ranks trained on in this epoch, in the plan's order."""
    found = []
    for step, (here, _) in enumerate(done[0].seen):
        if here == epoch:
            found += [(tuple(rank.rows[step]), rank.tensors[step]) for rank in done]
    return found


def digests(checkpoint: Path) -> dict[str, str]:
    return {
        str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }


class Campaign:
    """Runs of the real trainer in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        render(["--out", str(folder / "clips"), "--clips", "48", "--seed", "1"])
        (folder / "tiny.py").write_text(CONFIG)

    def words(self, name: str, *more: str) -> list[str]:
        data = str(self.folder / "clips" / "digits.csv")
        return [str(self.folder / "tiny.py"), "--data-path", data, "--run-dir", str(self.folder / name), *more]  # fmt: skip

    def run(self, runs: dict[str, list[str]], world: int, name: str) -> dict[str, list[Done]]:
        every = ranks.train(list(runs.values()), world, self.folder / name, limit_s=LIMIT_S)
        for done in every:
            assert [rank.code for rank in done] == [0] * world, done[0].err
        return dict(zip(runs, every, strict=True))

    def whole(self, world: int) -> Whole:
        name = f"whole-{world}"
        done = self.run({name: self.words(name, "--ckpt-every", "1")}, world, f"ranks-{name}")
        return Whole(world, self.folder / name, done[name])


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
def test_real_resumes_at_every_step_and_from_any_to_any_number_of_ranks(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path)
    wholes = {world: campaign.whole(world) for world in WORLDS}
    every_step = _at_every_step(campaign, wholes[2])
    changed = _to_other_ranks(campaign, wholes, random.Random(0), 4)
    print(f"at every step of {EPOCHS} epochs: {every_step}; to other ranks: {changed}; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    assert every_step["resumes"] == wholes[2].steps
    assert changed["resumes"] == 16
    for counts in (every_step, changed):
        wrong = {name: count for name, count in counts.items() if name not in ("resumes", "steps")}
        assert not any(wrong.values()), wrong


def _at_every_step(campaign: Campaign, whole: Whole) -> dict[str, int]:
    """On the same ranks: rows, tensors and losses of what follows, and every byte of the last checkpoint."""
    runs = {
        step: campaign.words(f"from-{step}", "--load", str(whole.checkpoint(step)))
        for step in range(1, whole.steps + 1)
    }
    found = campaign.run(
        {str(k): v for k, v in runs.items()}, whole.world, f"ranks-at-every-step-{whole.world}"
    )
    wanted, last = losses(whole.folder), digests(whole.checkpoint(whole.steps))
    counts = dict.fromkeys(("resumes", "steps", "rows", "tensors", "losses", "checkpoints"), 0)
    for step in runs:
        done, run_dir = found[str(step)], campaign.folder / f"from-{step}"
        counts["resumes"] += 1
        counts["steps"] += whole.steps - step
        for mine, theirs in zip(done, whole.done, strict=True):
            counts["rows"] += mine.rows != theirs.rows[step:]
            counts["tensors"] += mine.tensors != theirs.tensors[step:]
        counts["losses"] += losses(run_dir) != {s: x for s, x in wanted.items() if s > step}
        if step < whole.steps:  # after the last step there is nothing left to save
            end = run_dir / whole.checkpoint(whole.steps).name
            counts["checkpoints"] += digests(end) != last
    return counts


def _to_other_ranks(
    campaign: Campaign, wholes: dict[int, Whole], draw: random.Random, each: int
) -> dict[str, int]:
    """`each` resumes for each number of ranks, of random steps of runs with another number."""
    counts = dict.fromkeys(("resumes", "steps", "repeated", "missed", "rows", "tensors"), 0)
    # One rank leaves no tail: its epochs are whole.
    total = [microbatches(wholes[1].done, epoch) for epoch in range(EPOCHS)]
    for world in WORLDS:
        picks = []
        for _ in range(each):
            source = wholes[draw.choice([other for other in WORLDS if other != world])]
            last = [s for s in range(1, source.steps) if source.epoch(s) != source.epoch(s + 1)]
            picks.append((source, draw.choice([draw.randrange(1, source.steps), *last[:1]])))
        runs = {
            f"{source.world}-to-{world}-from-{step}-{nth}": campaign.words(
                f"{source.world}-to-{world}-from-{step}-{nth}",
                *("--load", str(source.checkpoint(step))),
            )
            for nth, (source, step) in enumerate(picks)
        }
        found = campaign.run(runs, world, f"ranks-to-{world}")
        for (source, step), (name, done) in zip(picks, found.items(), strict=True):
            epoch = source.epoch(step)
            state = json.loads((source.checkpoint(step) / "sampler.json").read_text())
            before = microbatches(source.done, epoch)[: state["microbatches_consumed"]]
            after = microbatches(done, epoch)
            rows = [row for batch, _ in before + after for row in batch]
            counts["resumes"] += 1
            counts["steps"] += len(done[0].rows)
            counts["repeated"] += len(rows) - len(set(rows))
            counts["rows"] += not {b for b, _ in before + after} <= {b for b, _ in total[epoch]}
            left = len(total[epoch]) - len(before) - len(after)
            counts["missed"] += max(0, left - (world - 1))
            counts["tensors"] += not set(after) <= set(total[epoch])
            for later in range(epoch + 1, EPOCHS):
                # From the next epoch on it is the run that always had this many ranks.
                counts["rows"] += microbatches(done, later) != microbatches(
                    wholes[world].done, later
                )
            assert losses(campaign.folder / name), name
    return counts
