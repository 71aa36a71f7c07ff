"""How runs of two real ranks end: together, with what was good before, and with one sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from tests.trainer.small_disk import small_disk
from trainer.checkpoint import files as checkpoint
from trainer.config.load import load
from trainer.data.digits import main as render
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan
from trainer.runlog.run_dir import lock
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.weights import checkpoints
from trainer.weights.load import read_weights

pytestmark = [pytest.mark.long, pytest.mark.timeout(1300)]
CHANCE = '{"16px": {8: (0.4, 4)}}'  # of 24 clips: epochs of 0 to 5 microbatches


@dataclass(frozen=True)
class Runs:
    done: dict[str, list[Done]]
    folder: Path

    def codes(self, name: str) -> list[int]:
        return [rank.code for rank in self.done[name]]

    def good(self, name: str) -> list[Done]:
        assert self.codes(name) == [0, 0], self.done[name][0].err + self.done[name][1].err
        return self.done[name]

    def said_once(self, name: str) -> str:
        """By rank 0, for all."""
        said, silent = (rank.err for rank in self.done[name])
        assert "error" not in silent
        assert "Traceback" not in said + silent
        return said

    def steps(self, name: str) -> list[StepRecord]:
        return [r for r in read(self.folder / name) if isinstance(r, StepRecord)]

    def events(self, name: str, kind: str) -> list[str]:
        records = read(self.folder / name)
        return [r.text for r in records if isinstance(r, Event) and r.name == kind]

    def checkpoints(self, name: str) -> list[str]:
        return [path.name for path in checkpoints.complete(self.folder / name)]


def first_seed_with(folder: Path, steps: list[int]) -> int:
    """Under which the first epochs of two ranks have so many steps."""
    manifest, buckets = read_manifest(folder / "digits.csv"), Buckets.parse(eval(CHANCE))
    for seed in range(2000):
        plan = DataPlan(manifest, buckets, seed)
        if [len(plan.epoch(epoch)) // 2 for epoch in range(len(steps))] == steps:
            return seed
    raise AssertionError("no such seed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.py").write_text(TINY)
    for name, count in (("some", 24), ("fewer", 20)):
        render(["--out", str(folder / name), "--clips", str(count), "--seed", "1"])
    whole = (folder / "some" / "digits.csv").read_text()
    (folder / "some" / "wrong.csv").write_text(
        whole
        + "a.mp4,no numbers,,,,,,\n" * 2
        + "\n".join(f"{n}.mp4,none,0,1,1,1,1,1" for n in range(9))
    )
    # Chance has left out the second epoch: one step, none, one or more.
    seed = first_seed_with(folder / "some", [1, 0, 2])
    bad = folder / "bad"
    render(["--out", str(bad), "--clips", "24", "--seed", "1"])
    manifest = read_manifest(bad / "digits.csv")
    config = load(str(folder / "tiny.py"), [])
    epoch = DataPlan(manifest, Buckets.parse(config.bucket_config), config.seed).epoch(0)
    for batch in list(epoch)[:2]:
        Path(manifest.locate(int(batch.rows[0]))).write_bytes(b"")

    def words(name: str, *more: str, data: str = "some/digits.csv") -> list[str]:
        return [str(folder / "tiny.py"), "--data-path", str(folder / data), "--run-dir", str(folder / name),
                "--ckpt-every", "0", "--dataset.balance-window", "0", *more]  # fmt: skip

    unguarded = ["--guard-skip", "false"]
    three = str(folder / "first" / "epoch0-global_step3")
    (folder / "used").mkdir()
    release, note = lock(folder / "used")
    assert note == ""
    asked = {
        "first": words("first", "--max-steps", "3", "--ckpt-every", "1"),
        "inf-last": words("inf-last", *unguarded, "--max-steps", "4", "harm=infinite_gradient"),
        "inf-saved": words("inf-saved", *unguarded, "--max-steps", "6", "--ckpt-every", "2", "--keep-checkpoints", "1", "harm=infinite_gradient"),
        "inf-native": words("inf-native", *unguarded, "--engine", "native", "--max-steps", "4", "--ckpt-every", "3", "harm=infinite_gradient"),
        "nan-loss": words("nan-loss", *unguarded, "--max-steps", "6", "harm=loss_that_is_no_number"),
        "sigterm": words("sigterm", "--max-steps", "4", "harm=sigterm_in_last_step"),
        "texts": words("texts", "--max-steps", "20", "harm=texts_gone"),
        "texts-io": words("texts-io", "--max-steps", "20", "harm=texts_io_error"),
        "texts-memory": words("texts-memory", "--max-steps", "20", "harm=texts_no_memory"),
        "parts": words("parts", "--max-steps", "4", "harm=parts_missing"),
        "average": words("average", "--max-steps", "4", "--load", three, "harm=average_missing"),
        "weights": words("weights", "--max-steps", "4", "--load", three, "harm=checkpoint_missing"),
        "wrong-rows": words("wrong-rows", "--max-steps", "1", data="some/wrong.csv"),
        "used": words("used", "--max-steps", "1"),
        "bad": words("bad-run", "--max-steps", "9", "--max-bad-samples", "2", data="bad/digits.csv"),
        "bad-on": words("bad-on", "--max-steps", "12", "--max-bad-samples", "2", "--load", str(folder / "bad-run"), data="bad/digits.csv"),
        "bad-over": words("bad-over", "--max-steps", "12", "--max-bad-samples", "1", "--load", str(folder / "bad-run"), data="bad/digits.csv"),
        "no-room": words("no-room", "--load", str(folder / "first" / "epoch0-global_step1"), "--accumulation-steps", "4"),
        "remapped": words("remapped", "--load", three, "--max-steps", "5", "--data-state", "remap", data="fewer/digits.csv"),
        "chance": words("chance", "--bucket-config", CHANCE, "--seed", str(seed), "--epochs", "2", "--max-steps", "none", "--lr-schedule", "none"),
        "retried": words("retried", "--max-steps", "6", "--ckpt-every", "2", "harm=first_save_fails"),
        "not-retried": words("not-retried", "--max-steps", "6", "--ckpt-every", "2", "--ckpt-retry-hours", "0", "harm=first_save_fails"),
        "over": words("over", "--load", three, "--max-steps", "3"),
        "over-again": words("over", "--load", str(folder / "over"), "--max-steps", "3"),
        "late": words("late", "--dataset.batch-timeout-s", "500"),
        "ema": words("ema", "--ema-decay", "1"),
        "mask": words("mask", "--mask-ratios.image_head", "many"),
    }  # fmt: skip
    try:
        done = ranks.train(list(asked.values()), 2, folder / "p", limit_s=900)
    finally:
        release()
    return Runs(dict(zip(asked, done, strict=True)), folder)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("inf-last", []),
        ("inf-saved", ["epoch0-global_step2"]),
        ("inf-native", ["epoch0-global_step3"]),
    ],
)
def test_a_gradient_that_is_no_number_ends_the_run_before_anything_of_it_is_saved(
    runs: Runs, name: str, kept: list[str]
) -> None:
    assert runs.codes(name) == [1, 1]
    assert "error: the norm of the gradients of step 4 is " in runs.said_once(name)
    assert runs.checkpoints(name) == kept
    for step in kept:
        for part in ("model", "ema"):
            weights = read_weights(runs.folder / name / step / part)
            assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert runs.events(name, "done") == []


def test_a_loss_that_is_no_number_on_one_rank_ends_all_at_that_step(runs: Runs) -> None:
    assert runs.codes("nan-loss") == [1, 1]
    assert "error: the loss of step 4 is nan on rank 1; all ranks stop" in runs.said_once(
        "nan-loss"
    )
    assert [len(rank.rows) for rank in runs.done["nan-loss"]] == [4, 4]
    assert len(runs.events("nan-loss", "failed")) == 1


def test_sigterm_in_the_last_step_of_a_run_is_no_interruption(runs: Runs) -> None:
    runs.good("sigterm")
    assert len(runs.events("sigterm", "done")) == 1
    assert runs.checkpoints("sigterm") == ["epoch1-global_step4"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("texts", "the shards of captions are gone"),
        ("texts-io", "OSError: [Errno 5] Input/output error: '/data/captions.bin'"),
        ("texts-memory", "MemoryError"),
    ],
)
def test_a_rank_that_can_read_no_texts_ends_all_in_one_step_with_its_reason(
    runs: Runs, name: str, reason: str
) -> None:
    said = runs.said_once(name)
    assert set(runs.codes(name)) == {2 if name == "texts" else 1}
    assert "error: no batch for step " in said
    assert f"rank 1: {reason}" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("parts", "rank 1: FileNotFoundError: [Errno 2] No such file: '/models/vae'"),
        ("average", "rank 1: OSError: [Errno 5] Input/output error: '/run/ema'"),
        ("weights", "rank 1: MemoryError: no room for the weights"),
    ],
)
def test_what_one_rank_lacks_at_the_start_ends_all_with_its_reason(
    runs: Runs, name: str, reason: str
) -> None:
    assert runs.codes(name) == [1, 1]
    assert runs.said_once(name).startswith(f"error: {reason}")


def test_rows_that_are_left_out_are_counted_and_shown(runs: Runs) -> None:
    runs.good("wrong-rows")
    (text,) = runs.events("wrong-rows", "data")
    assert text.startswith(f"11 rows of {runs.folder}/some/wrong.csv left out, 24 good: line 26: ")
    assert "; and 6 more" in text
    (event,) = [
        r for r in read(runs.folder / "wrong-rows") if isinstance(r, Event) and r.name == "data"
    ]
    assert event.data == {"rows_left_out": 11}
    assert "data: 11 rows of " in runs.done["wrong-rows"][0].out


def test_a_second_run_in_a_directory_is_refused_before_it_touches_anything(runs: Runs) -> None:
    assert runs.codes("used") == [2, 2]
    said = runs.said_once("used")
    assert f"another run uses {runs.folder / 'used'}: process " in said
    assert [path.name for path in (runs.folder / "used").iterdir()] == [".lock"]


def test_a_bad_clip_counts_once_in_however_many_epochs_it_is(runs: Runs) -> None:
    """Two clips that are bad in each of three epochs, and in those after a resume."""
    runs.good("bad")
    lines = (runs.folder / "bad-run" / "bad_samples.jsonl").read_text().splitlines()
    assert len(lines) >= 4
    assert len({json.loads(line)["path"] for line in lines}) == 2
    # A clip that hangs would cost its limit in every epoch: the last one has tried neither.
    found = [json.loads(line) for line in lines]
    again = [one for one in found if one["reason"].startswith("not tried again: ")]
    assert {one["path"] for one in again} == {one["path"] for one in found}
    assert {one["path"] for one in found if one["step"] > 6} == {
        one["path"] for one in again if one["step"] > 6
    }
    states = json.loads(
        (runs.folder / "bad-run" / "epoch2-global_step9" / "running_states.json").read_text()
    )
    assert states["bad_samples"] == len(states["bad_clips"]) == 2
    runs.good("bad-on")
    assert runs.codes("bad-over") == [1, 1]
    assert "2 clips could not be read, more than max_bad_samples = 1" in runs.said_once("bad-over")


def test_data_without_a_step_for_so_many_microbatches_are_refused_once(runs: Runs) -> None:
    assert runs.codes("no-room") == [2, 2]
    assert "epoch 0 has 4 microbatches left, 2 ranks need 8 for a step, and none of the next 100 epochs" in runs.said_once("no-room")  # fmt: skip


def test_remap_at_the_end_of_an_epoch_goes_on_with_the_next_one(runs: Runs) -> None:
    runs.good("remapped")
    assert [(r.step, r.epoch) for r in runs.steps("remapped")] == [(4, 1), (5, 1)]
    notes = runs.events("remapped", "data")
    assert "less than a step is left of epoch 0: the data continue in epoch 1" in notes


def test_no_epoch_after_the_last_is_begun_when_chance_leaves_the_last_one_empty(runs: Runs) -> None:
    runs.good("chance")
    assert [r.epoch for r in runs.steps("chance")] == [0]
    assert runs.checkpoints("chance") == ["epoch0-global_step1"]
    assert "Traceback" not in runs.done["chance"][0].err


def test_a_run_with_nothing_left_to_do_says_so_and_its_directory_has_the_checkpoint(
    runs: Runs,
) -> None:
    runs.good("over")
    assert runs.checkpoints("over") == ["epoch0-global_step3"]
    checkpoint.verify(runs.folder / "over" / "epoch0-global_step3")
    first, again = runs.events("over", "done")
    assert "nothing was left to train" in first
    assert again == first
    assert len(runs.events("over", "checkpoint")) == 1  # not again in the same directory


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("late", "a rank may wait 11 min 20 s for a batch (dataset.batch_timeout_s = 500"),
        ("ema", "ema_decay must be at least 0.0 and below 1"),
        ("mask", "mask_ratios: image_head must be between 0 and 1; not 'many'"),
    ],
)
def test_a_config_that_cannot_work_is_one_sentence_before_anything_is_made(
    runs: Runs, name: str, said: str
) -> None:
    assert runs.codes(name) == [2, 2]
    assert said in runs.done[name][0].err.replace("at least 0 and", "at least 0.0 and")
    assert "Traceback" not in runs.done[name][0].err
    assert not (runs.folder / name).exists()


def test_a_save_that_fails_is_told_and_costs_no_step(runs: Runs) -> None:
    runs.good("retried")
    assert [record.step for record in runs.steps("retried")] == [1, 2, 3, 4, 5, 6]
    (told,) = runs.events("retried", "save-failed")
    assert "could not be written: rank 0: OSError: [Errno 5] Input/output error" in told
    assert "training goes on, the next try is after step " in told
    saved = [int(name.rpartition("step")[2]) for name in runs.checkpoints("retried")]
    assert saved[-1] == 6
    assert 2 not in saved
    for name in runs.checkpoints("retried"):
        checkpoint.verify(runs.folder / "retried" / name)


def test_a_save_that_fails_ends_a_run_that_is_told_so(runs: Runs) -> None:
    assert runs.codes("not-retried") == [1, 1]
    said = runs.said_once("not-retried")
    assert "error: the checkpoint could not be written: rank 0: OSError" in said
    assert runs.events("not-retried", "save-failed") == []


def test_a_full_disk_costs_saves_and_lines_of_telemetry_and_no_step(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    render(["--out", str(tmp_path / "clips"), "--clips", "24", "--seed", "1"])
    with small_disk(tmp_path / "disk", "100m") as disk:
        words = [str(tmp_path / "tiny.py"), "--data-path", str(tmp_path / "clips/digits.csv"),
                 "--run-dir", str(disk / "run"), "--ckpt-every", "4", "--max-steps", "16", "harm=full_disk"]  # fmt: skip
        ((one, other),) = ranks.train([words], 2, tmp_path / "p", env={"HARM_DISK": str(disk)})
        assert (one.code, other.code) == (0, 0), one.err + other.err
        records = list(read(disk / "run"))
        (event,) = [r for r in records if isinstance(r, Event) and r.name == "lost"]
        steps = [r.step for r in records if isinstance(r, StepRecord)]
        lost = event.data["lines"]
        assert steps[-1] == 16
        assert lost >= 5
        assert len(steps) + lost >= 16  # "epoch" events are lost with them
        assert "lines before this one could not be written: " in event.text
        assert one.err.count("warning: lines for telemetry.jsonl are lost") == 1
        assert checkpoints.find(disk / "run").name.endswith("global_step16")
        assert one.out.count("save-failed: the checkpoint could not be written: rank 0: ") == 3
