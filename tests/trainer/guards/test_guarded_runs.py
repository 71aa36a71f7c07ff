"""Runs of two real ranks with a bad step: it is skipped by both, told, and a resume repeats it all."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from trainer.data.digits import main as render
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.weights import checkpoints

pytestmark = [pytest.mark.long, pytest.mark.timeout(1300)]


@dataclass(frozen=True)
class Runs:
    done: dict[str, list[Done]]
    folder: Path

    def good(self, name: str) -> None:
        assert [rank.code for rank in self.done[name]] == [0, 0], self.done[name][0].err

    def steps(self, name: str) -> list[StepRecord]:
        return [r for r in read(self.folder / name) if isinstance(r, StepRecord)]

    def skipped(self, name: str) -> list[int]:
        return [record.step for record in self.steps(name) if record.skipped]

    def events(self, name: str, kind: str) -> list[Event]:
        return [r for r in read(self.folder / name) if isinstance(r, Event) and r.name == kind]

    def checkpoints(self, name: str) -> list[str]:
        return [path.name for path in checkpoints.complete(self.folder / name)]

    def digests(self, name: str, checkpoint: str) -> dict[str, str]:
        """Of every file, guards.json among them."""
        folder = self.folder / name / checkpoint
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tiny.py").write_text(TINY)
    render(["--out", str(folder / "clips"), "--clips", "96", "--seed", "1"])

    def words(name: str, *more: str) -> list[str]:
        return [str(folder / "tiny.py"), "--data-path", str(folder / "clips/digits.csv"),
                "--run-dir", str(folder / name), *more]  # fmt: skip

    def at(name: str, step: int) -> list[str]:
        return ["--load", str(folder / name / f"epoch{(step - 1) // 12}-global_step{step}")]

    long = [
        "--max-steps",
        "60",
        "--ckpt-every",
        "20",
        "--log-every",
        "20",
        "--keep-checkpoints",
        "9",
    ]
    asked = {
        "plain": words("plain"),
        "off": words("off", "--guard-skip", "false", "--guard-rollback", "false"),
        "bad": words("bad", "harm=infinite_gradient"),
        "bad-on": words("bad-on", *at("bad", 4)),
        "nan": words("nan", "--max-steps", "5", "harm=loss_that_is_no_number"),
        "absurd": words("absurd", *long, "harm=absurd_gradient_in_step_55"),
        "absurd-on": words("absurd-on", *long, *at("absurd", 40), "harm=absurd_gradient_in_step_15"),
        "many": words("many", "--guard-rollback", "false", "--ckpt-every", "2", "--max-steps", "9", "harm=infinite_gradients"),
        "average": words("average", "--max-steps", "9", "--ckpt-every", "4", "harm=average_that_is_no_number"),
        "average-stop": words("average-stop", "--max-steps", "9", "--ckpt-every", "0", "harm=stopped_with_a_bad_average"),
    }  # fmt: skip
    done = ranks.train(list(asked.values()), 2, folder / "p", limit_s=900)
    return Runs(dict(zip(asked, done, strict=True)), folder)


@pytest.mark.parametrize("name", ["bad", "nan"])
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(
    runs: Runs, name: str
) -> None:
    runs.good(name)
    assert runs.skipped(name) == [4]
    (event,) = runs.events(name, "skip")
    assert event.step == 4
    assert event.text.startswith(
        "step 4 is skipped on all ranks: the norm of its gradients is nan; weights, optimizer"
    )
    assert event.data["grad_norm"] == "nan"
    assert f"skip: {event.text}" in runs.done[name][0].out
    assert "s/step  skipped\n" in runs.done[name][0].out
    before, skipped, after = runs.steps(name)[2:5]
    assert before.weight_norm == skipped.weight_norm != after.weight_norm
    assert (before.lr, skipped.lr) != (skipped.lr, after.lr)
    assert skipped.lr == after.lr  # the schedule counts steps that were taken
    assert runs.checkpoints(name)[-1].endswith(f"global_step{runs.steps(name)[-1].step}")


def test_a_skipped_step_leaves_the_average_alone(runs: Runs) -> None:
    states = {}
    for name, step in (("bad", 8), ("plain", 8)):
        file = runs.folder / name / f"epoch0-global_step{step}" / "running_states.json"
        states[name] = json.loads(file.read_text())["ema_updates"]
    assert states == {"bad": 7, "plain": 8}


def test_a_run_that_continues_after_a_skipped_step_is_the_one_that_never_stopped(
    runs: Runs,
) -> None:
    runs.good("bad-on")
    losses = {record.step: record.loss for record in runs.steps("bad")}
    assert {r.step: r.loss for r in runs.steps("bad-on")} == {s: losses[s] for s in (5, 6, 7, 8)}
    last = "epoch0-global_step8"
    assert runs.digests("bad-on", last) == runs.digests("bad", last)


def test_an_absurd_gradient_is_skipped_by_what_was_before_also_after_a_resume(runs: Runs) -> None:
    """The resumed run has 15 steps of its own and skips by the history in the checkpoint."""
    for name in ("absurd", "absurd-on"):
        runs.good(name)
        assert runs.skipped(name) == [55]
        (event,) = runs.events(name, "skip")
        assert event.data["grad_norm"] > 10 * event.data["limit"]
        assert event.data["kinds"] == ["16px 8f"]
        assert "above the limit" in event.text
    last = runs.checkpoints("absurd")[-1]
    assert last.endswith("global_step60")
    assert runs.digests("absurd-on", last) == runs.digests("absurd", last)


def test_a_healthy_run_is_the_same_with_and_without_the_guard(runs: Runs) -> None:
    for name in ("plain", "off"):
        runs.good(name)
        assert runs.skipped(name) == []
    last = "epoch0-global_step8"
    guarded, off = runs.digests("plain", last), runs.digests("off", last)
    differ = {file for file in guarded if guarded[file] != off[file]}
    assert differ == {"guards.json", "manifest.json"}


def test_a_fourth_skipped_step_in_50_ends_all_ranks_and_saves_nothing_more(runs: Runs) -> None:
    assert [rank.code for rank in runs.done["many"]] == [1, 1]
    said, silent = (rank.err for rank in runs.done["many"])
    text = "error: the steps 3, 4, 5 and 6 are skipped, more than 3 in 50 steps; all ranks stop"
    assert text in said
    assert "--guard-skip false" in said
    assert silent == ""
    assert runs.skipped("many") == [3, 4, 5, 6]
    assert runs.checkpoints("many") == ["epoch0-global_step2", "epoch0-global_step4"]
    assert [len(rank.rows) for rank in runs.done["many"]] == [6, 6]


@pytest.mark.parametrize("name", ["average", "average-stop"])
def test_no_checkpoint_is_made_of_an_average_that_is_not_finite(runs: Runs, name: str) -> None:
    """At the interval, and when the run was asked to stop."""
    assert [rank.code for rank in runs.done[name]] == [1, 1]
    said, silent = (rank.err for rank in runs.done[name])
    assert "error: the averaged weights of step 4 are not finite on rank 1; all ranks stop" in said
    assert silent == ""
    assert runs.checkpoints(name) == []
    assert not list((runs.folder / name).glob(".tmp-*"))
