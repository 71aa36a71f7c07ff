"""Stop and go on: the resumed run is the run that was never stopped, bit by bit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from trainer.checkpoint.sizes import predicted_size
from trainer.config.load import load
from trainer.data.digits import main as render
from trainer.runlog.telemetry import Event, StepRecord, read

CLIPS = 96  # 24 microbatches an epoch: 12 steps of 2 ranks


pytestmark = [pytest.mark.long, pytest.mark.timeout(1300)]  # above what the ranks have


@dataclass(frozen=True)
class Runs:
    """The runs of the module: what each rank did, and each run's directory."""

    done: dict[str, list[Done]]
    folder: Path

    def directory(self, name: str) -> Path:
        return self.folder / name

    def losses(self, name: str) -> dict[int, float]:
        return {r.step: r.loss for r in self.records(name)}

    def records(self, name: str) -> list[StepRecord]:
        return [r for r in read(self.folder / name) if isinstance(r, StepRecord)]

    def events(self, name: str) -> dict[str, str]:
        return {e.name: e.text for e in read(self.folder / name) if isinstance(e, Event)}

    def good(self, name: str) -> list[Done]:
        assert [rank.code for rank in self.done[name]] == [0] * len(self.done[name]), self.done[
            name
        ][0].err
        return self.done[name]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, count in (("all", CLIPS), ("fewer", 64)):
        render(["--out", str(folder / name), "--clips", str(count), "--seed", "1"])
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.py").write_text(TINY)

    def words(name: str, *more: str, data: str = "all") -> list[str]:
        return [str(folder / "tiny.py"), "--data-path", str(clips / data / "digits.csv"),
                "--run-dir", str(folder / name), *more]  # fmt: skip

    four = str(folder / "whole" / "epoch0-global_step4")
    bf16 = ["--dtype", "bf16"]
    masks = ["--mask-ratios.image_head", "0.4", "--mask-ratios.random", "0.3"]
    ddp = ["--plugin", "ddp", *masks]
    native = ["--engine", "native"]
    held = ["--lr", "0", "--lr-schedule", "none", "--warmup-steps", "none"]
    end = ["--ckpt-every", "0", "--max-steps"]
    first = {
        "whole": words("whole"),
        "bf16": words("bf16", *bf16),
        "ddp": words("ddp", *ddp),
        "two-epochs": words(
            "two-epochs", "--ckpt-every", "0", "--ckpt-at-epoch-end", "--max-steps", "14"
        ),
        "native": words("native", *native),
        "one-epoch": words("one-epoch", *end, "none", "--epochs", "1", "--lr-schedule", "none", "--accumulation-steps", "2"),
        "nan": words("nan", "--lr", "1e30", "--grad-clip", "0"),
    }  # fmt: skip
    fresh = {
        "resumed": words("resumed", "--load", four),
        "bf16-resumed": words("bf16-resumed", *bf16, "--load", str(folder / "bf16" / "epoch0-global_step4")),
        "ddp-resumed": words("ddp-resumed", *ddp, "--load", str(folder / "ddp" / "epoch0-global_step4")),
        "second-epoch": words("second-epoch", *end, "14", "--load", str(folder / "two-epochs" / "epoch0-global_step12")),
        "native-after": words("native-after", *native, "--load", four),
        "after-native": words("after-native", "--load", str(folder / "native" / "epoch0-global_step4")),
        "weights-only": words("weights-only", *end, "2", "--ckpt-path", four),
        "data-anew": words("data-anew", *end, "2", "--load", four, "--start-from-scratch"),
        "other-data": words("other-data", "--load", four, data="fewer"),
        "reset": words("reset", *end, "6", "--load", four, "--data-state", "reset", data="fewer"),
        "remap": words("remap", *end, "7", "--load", four, "--data-state", "remap", data="fewer"),
        "lr-0": words("lr-0", *end, "6", "--load", four, *held),
        "from-the-start": words("from-the-start", *end, "6", "--load", four, "--start-step", "0", "--start-epoch", "0"),
        "from-a-place": words("from-a-place", *end, "5", "--load", four, "--start-epoch", "1", "--start-step", "1"),
        "no-such-step": words("no-such-step", "--load", four, "--start-step", "12"),
        "two-places": words("two-places", "--load", four, "--start-step", "3", "--start-from-scratch"),
        "again": words("whole", "--load", four),
        "over": words("over", "--load", str(folder / "resumed")),
    }  # fmt: skip
    alone = {"one-rank": words("one-rank", *end, "12", "--load", four)}
    done = dict(zip(first, ranks.train(list(first.values()), 2, folder / "p1"), strict=True))
    whole = folder / "whole"
    losses = {r.step: r.loss for r in read(whole) if isinstance(r, StepRecord)}
    (folder / "whole.json").write_text(json.dumps(losses))
    (folder / "digests.json").write_text(json.dumps(_digests(whole / "epoch0-global_step8")))
    pair = ranks.start(list(fresh.values()), 2, folder / "p2")
    single = ranks.start(list(alone.values()), 1, folder / "p3")
    done |= dict(zip(fresh, ranks.finish(pair, folder / "p2"), strict=True))
    done |= dict(zip(alone, ranks.finish(single, folder / "p3"), strict=True))
    return Runs(done, folder)


def _digests(checkpoint: Path) -> dict[str, str]:
    """Of every tensor and state file; running_states and manifest hold the same by way of these."""
    return {
        str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("whole", "resumed"), [("whole", "resumed"), ("bf16", "bf16-resumed"), ("ddp", "ddp-resumed")]
)
def test_a_resumed_run_is_the_one_that_never_stopped(runs: Runs, whole: str, resumed: str) -> None:
    before, after = runs.good(whole), runs.good(resumed)
    losses = runs.losses(whole)
    assert runs.losses(resumed) == {step: losses[step] for step in (5, 6, 7, 8)}
    assert [rank.rows for rank in after] == [rank.rows[4:] for rank in before]
    name = "epoch0-global_step8"  # weights, EMA, masters, Adam's moments, counters, position
    assert _digests(runs.directory(resumed) / name) == _digests(runs.directory(whole) / name)


def test_each_epoch_says_what_it_trains_on(runs: Runs) -> None:
    assert runs.events("bf16")["epoch"] == "epoch 0 begins: 96 clips"
    assert runs.events("resumed")["epoch"] == "epoch 0 continues: 96 clips"
    # 24 microbatches in steps of 2 ranks times 2
    assert runs.events("one-epoch")["epoch"] == "epoch 0 begins: 96 clips"


def test_the_resumed_run_says_where_it_goes_on(runs: Runs) -> None:
    text = runs.events("resumed")["resume"]
    assert (
        "epoch0-global_step4 of step 4; the data continue in epoch 0 after 8 microbatches" in text
    )
    assert "written by 2 ranks and read by 1" in runs.events("one-rank")["resume"]


def test_clips_with_given_frames_are_trained_on_though_ranks_differ_in_having_them(
    runs: Runs,
) -> None:
    """Four clips a rank and step: most steps have a rank with a mask, some have one without."""
    runs.good("ddp")
    masked, plain = runs.losses("ddp"), runs.losses("whole")
    assert len(masked) == len(plain)
    # the same weights, clips and times, less frames in the loss; the plugins round alike until they step
    assert abs(masked[1] - plain[1]) > 1e-3 * plain[1]
    assert all(0 < loss < 3 for loss in masked.values())


def test_another_number_of_ranks_goes_on_at_the_same_microbatch(runs: Runs) -> None:
    used = [
        rows for pair in zip(*(r.rows for r in runs.good("whole")), strict=True) for rows in pair
    ]
    alone = runs.good("one-rank")[0].rows
    assert len(alone) == 8
    assert alone == used[8:16]  # steps 5..8 of two ranks, one after another
    assert runs.records("one-rank")[0].step == 5


def test_a_checkpoint_of_an_epochs_last_step_goes_on_with_the_next_epoch(runs: Runs) -> None:
    before, after = runs.good("two-epochs"), runs.good("second-epoch")
    assert [rank.rows for rank in after] == [rank.rows[12:] for rank in before]
    assert runs.losses("second-epoch") == {s: runs.losses("two-epochs")[s] for s in (13, 14)}
    first = sorted(row for rank in before for rows in rank.rows[:12] for row in rows)
    assert first == list(range(CLIPS))  # every clip once
    assert [r.epoch for r in runs.records("two-epochs")] == [0] * 12 + [1] * 2


def test_the_cursor_counts_what_was_trained_on_and_nothing_prefetched(runs: Runs) -> None:
    sampler = json.loads((runs.directory("whole") / "epoch0-global_step4/sampler.json").read_text())
    assert (sampler["epoch"], sampler["microbatches_consumed"], sampler["world"]) == (0, 8, 2)
    assert [tuple(c) for c in runs.good("whole")[0].seen] == [(0, 2 * s) for s in range(1, 9)]


def test_a_run_ends_with_its_last_epoch(runs: Runs) -> None:
    runs.good("one-epoch")
    assert [r.step for r in runs.records("one-epoch")] == list(range(1, 7))
    assert runs.records("one-epoch")[-1].steps_total == 6
    assert (runs.directory("one-epoch") / "epoch0-global_step6" / "manifest.json").is_file()
    assert "done" in runs.events("one-epoch")


def test_a_run_can_save_at_the_end_of_each_epoch(runs: Runs) -> None:
    runs.good("two-epochs")
    made = sorted(path.name for path in runs.directory("two-epochs").glob("epoch*-global_step*"))
    assert made == ["epoch0-global_step12", "epoch1-global_step14"]


@pytest.mark.parametrize("name", ["whole", "native"])
def test_the_predicted_size_of_a_checkpoint_is_that_of_its_tensors(runs: Runs, name: str) -> None:
    runs.good(name)
    size = predicted_size(load(runs.directory(name)))
    for folder, predicted in (("model", size.model_bytes), ("ema", size.ema_bytes), ("optimizer", size.optimizer_bytes)):  # fmt: skip
        files = (runs.directory(name) / "epoch0-global_step8" / folder).glob("*.safetensors")
        tensors = [tensor for file in files for tensor in load_file(file).values()]
        written = sum(tensor.nbytes for tensor in tensors)
        assert predicted <= written <= 1.05 * predicted  # parts of ranks are padded


def test_a_finished_run_resumed_has_nothing_to_do(runs: Runs) -> None:
    runs.good("over")
    assert runs.records("over") == []


def test_ckpt_path_takes_the_weights_and_nothing_else(runs: Runs) -> None:
    runs.good("weights-only")
    losses = runs.losses("weights-only")
    assert sorted(losses) == [1, 2]
    assert losses[1] != runs.losses("whole")[1]
    assert [r.rows for r in runs.done["weights-only"]] == [r.rows[:2] for r in runs.done["whole"]]


def test_start_from_scratch_begins_the_data_anew_with_the_old_optimizer(runs: Runs) -> None:
    runs.good("data-anew")
    assert [r.rows for r in runs.done["data-anew"]] == [r.rows[:2] for r in runs.done["whole"]]
    assert [r.step for r in runs.records("data-anew")] == [1, 2]
    # the schedule goes on after the four steps it has counted
    assert runs.records("data-anew")[0].lr != runs.records("weights-only")[0].lr


def test_a_step_tells_the_weights_norm_and_the_save_before_it(runs: Runs) -> None:
    sharded, alone, whole = (runs.records(name) for name in ("whole", "one-rank", "ddp"))
    for record in [*sharded, *alone, *whole]:
        assert record.weight_norm is not None
        assert sum(record.seconds.values()) <= record.step_s * 1.05
        assert 0 <= (record.idle_share or 0) <= 1
    # one sum over parts and one over wholes
    assert sharded[0].weight_norm == pytest.approx(whole[0].weight_norm, rel=1e-4)
    saved = [record.seconds["checkpoint"] for record in sharded[:8]]
    assert [seconds > 0 for seconds in saved] == [False] * 4 + [True] + [False] * 3


def test_other_data_are_refused_once_with_the_difference_and_the_ways_on(runs: Runs) -> None:
    assert [rank.code for rank in runs.done["other-data"]] == [2, 2]
    said, silent = (rank.err for rank in runs.done["other-data"])
    assert "96 rows then, 64 now" in said
    assert "--data-state remap" in said
    assert "Traceback" not in said
    assert silent == ""


def test_steps_of_two_microbatches_a_rank_train_on_the_same_epoch(runs: Runs) -> None:
    rows = [row for rank in runs.good("one-epoch") for step in rank.rows for row in step]
    records = runs.records("one-epoch")
    assert sorted(rows) == list(range(CLIPS))
    assert sum(record.samples for record in records) == CLIPS
    assert records[0].samples == 2 * runs.records("whole")[0].samples


def test_both_engines_have_the_same_losses_and_either_goes_on_from_the_other(runs: Runs) -> None:
    runs.good("native")
    wanted = list(runs.losses("whole").values())
    native = [record.loss for record in runs.records("native")]
    assert len(native) == 8
    assert native == pytest.approx(wanted, rel=1e-3)
    for name in ("native-after", "after-native"):
        runs.good(name)
        found = [record.loss for record in runs.records(name)]
        assert found == pytest.approx(wanted[4:], rel=1e-3)
    files = [sorted(p.name for p in (runs.directory(name) / "epoch0-global_step8").rglob("*")) for name in ("whole", "native")]  # fmt: skip
    assert files[0] == files[1]


def test_start_epoch_and_step_state_the_place_in_the_data(runs: Runs) -> None:
    runs.good("from-the-start")
    assert [r.rows for r in runs.done["from-the-start"]] == [r.rows[:2] for r in runs.done["whole"]]
    assert [(r.step, r.epoch) for r in runs.records("from-the-start")] == [(5, 0), (6, 0)]
    runs.good("from-a-place")
    place = [rank.rows[13:14] for rank in runs.good("two-epochs")]  # the second step of epoch 1
    assert [rank.rows for rank in runs.done["from-a-place"]] == place
    text = runs.events("from-a-place")["data"]
    assert "epoch 1 after 2 microbatches" in text
    assert "the count of steps continues after 4" in text


def test_a_place_that_is_not_there_is_refused_once(runs: Runs) -> None:
    assert [rank.code for rank in runs.done["no-such-step"]] == [2, 2]
    said, silent = (rank.err for rank in runs.done["no-such-step"])
    assert "--start-step 12: epoch 0 has 12 steps of 2 microbatches, 0 to 11" in said
    assert "--start-epoch 1 --start-step 0" in said
    assert silent == ""
    assert "leave out one of them" in runs.done["two-places"][0].err


def test_data_state_remap_goes_on_with_the_clips_that_the_epoch_has_not_had(runs: Runs) -> None:
    rows = [row for rank in runs.good("remap") for step in rank.rows for row in step]
    seen = np.load(runs.directory("whole") / "epoch0-global_step4" / "seen.npy").tolist()
    since = np.load(runs.directory("remap") / "epoch0-global_step7" / "seen.npy").tolist()
    assert since[: len(seen)] == seen
    new = since[len(seen) :]
    assert len(new) == len(set(new)) == len(rows) == len(set(rows)) > 0
    assert not set(new) & set(seen)


def test_data_state_reset_starts_the_next_epoch_with_the_new_data(runs: Runs) -> None:
    runs.good("reset")
    assert [(r.step, r.epoch) for r in runs.records("reset")] == [(5, 1), (6, 1)]
    assert max(max(rows) for rank in runs.done["reset"] for rows in rank.rows) < 64


def test_a_new_learning_rate_wins_and_is_the_one_that_moves_the_weights(runs: Runs) -> None:
    runs.good("lr-0")  # with AdamW's decay by lr nothing moves at all
    assert [r.lr for r in runs.records("lr-0")] == [0, 0]
    assert "the learning rate is 0 by this run's lr = 0" in runs.events("lr-0")["lr"]
    assert "lr" not in runs.events("resumed")
    before, after = runs.directory("whole"), runs.directory("lr-0")
    name = "model/model.safetensors"
    held = (after / "epoch0-global_step6" / name).read_bytes()
    assert held == (before / "epoch0-global_step4" / name).read_bytes()


def test_costs_and_the_loss_s_weighting_are_on_record(runs: Runs) -> None:
    table = json.loads((runs.directory("bf16") / "costs.json").read_text())
    assert (table["schema"], table["how"]) == (1, "flops")
    assert [line["bucket"] for line in table["buckets"]] == ["16px 8f 1.00"]
    assert table["buckets"][0]["cost"] > 0
    again = json.loads((runs.directory("resumed") / "costs.json").read_text())
    assert again["how"] == "checkpoint"
    assert [line["class"] for line in again["buckets"]] == [line["class"] for line in table["buckets"]]  # fmt: skip
    assert "each microbatch counts the same" in runs.events("whole")["loss"]


def test_a_run_that_goes_back_in_its_own_directory_replaces_what_it_passes(runs: Runs) -> None:
    runs.good("again")
    stored = json.loads((runs.folder / "digests.json").read_text())
    assert _digests(runs.directory("whole") / "epoch0-global_step8") == stored
    assert not list(runs.directory("whole").glob(".tmp-*"))


def test_weights_that_are_no_numbers_stop_all_ranks_at_one_step(runs: Runs) -> None:
    done = runs.done["nan"]
    assert [rank.code for rank in done] == [1, 1]
    assert len(done[0].rows) == len(done[1].rows)
    assert "error: the norm of the weights after step 1 is inf on rank 0, 1" in done[0].err
    assert "smaller lr" in done[0].err
    assert done[1].err == ""
    assert "failed" in runs.events("nan")
    assert not list(runs.directory("nan").glob("epoch*"))
