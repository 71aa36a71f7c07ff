"""Validation in real runs of real ranks: it measures, and changes nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import ranks
from tests.trainer.ranks import TINY, Done
from trainer.data.digits import main as render
from trainer.infer.losses import Losses
from trainer.infer.models import Models
from trainer.runlog.json_file import read_object
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.weights.load import read_weights

pytestmark = pytest.mark.timeout(1300)
KEEP = ["--validation.share", "0.25"]
EVERY = ["--validation.every", "4"]


@dataclass(frozen=True)
class Runs:
    folder: Path
    done: dict[str, list[Done]]

    def measured(self, name: str) -> dict[int, dict[str, Any]]:
        found = [
            e for e in read(self.folder / name) if isinstance(e, Event) and e.name == "validation"
        ]
        return {one.step or 0: one.data for one in found}

    def steps(self, name: str) -> list[tuple[Any, ...]]:
        records = [r for r in read(self.folder / name) if isinstance(r, StepRecord)]
        return [(r.step, r.loss, r.grad_norm, r.weight_norm, r.samples) for r in records]

    def evaluated(self, name: str) -> dict[tuple[int, str], dict[str, Any]]:
        found = json.loads(self.done[name][0].out)["measured"]
        return {(one["step"], one["weights"]): one for one in found}


@dataclass(frozen=True)
class Place:
    """Clips and the words for runs on them."""

    folder: Path

    def words(self, name: str, *more: str, data: str = "clips") -> list[str]:
        place = [
            str(self.folder / "tiny.py"),
            "--data-path",
            str(self.folder / data / "digits.csv"),
        ]
        return [*place, "--run-dir", str(self.folder / name), *more]

    def evaluate(self, name: str, *more: str) -> list[str]:
        return ["evaluate", str(self.folder / name), "--json", *more]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("runs")
    render(["--out", str(folder / "clips"), "--clips", "96", "--seed", "1"])
    (folder / "tiny.py").write_text(TINY)
    return Place(folder)


@pytest.fixture(scope="module")
def runs(place: Place) -> Runs:
    folder, words, evaluate = place.folder, place.words, place.evaluate
    damaged = folder / "damaged"
    shutil.copytree(folder / "clips", damaged)
    for line in (folder / "clips" / "digits.csv").read_text().splitlines()[1:7]:
        (damaged / line.split(",")[0]).write_bytes(b"no video")
    render(["--out", str(folder / "others"), "--clips", "16", "--seed", "9"])
    others = folder / "others" / "digits.csv"
    own = others.read_text().replace("clips/", str(folder / "others" / "clips") + "/")
    others.write_text(own)
    all_clips, one_step = str(folder / "clips" / "digits.csv"), ["--max-steps", "1"]
    pairs = {
        "off": words("off", *KEEP),
        "on": words("on", *KEEP, *EVERY),
        "resumed": words(
            "resumed", *KEEP, *EVERY, "--load", str(folder / "on" / "epoch0-global_step4")
        ),
        "resumed-bad": words(
            "resumed-bad",
            *KEEP,
            "--validation.every",
            "100",
            "--max-steps",
            "5",
            "--load",
            str(folder / "on" / "epoch0-global_step4"),
            data="damaged",
        ),
        "evaluated": evaluate("on", "--all"),
    }
    single = {
        "alone": words("alone", *KEEP, *EVERY, *one_step, "--ckpt-every", "0"),
        "damaged": words("damaged-run", *KEEP, *EVERY, *one_step, data="damaged"),
        "own": words("own", *EVERY, "--validation.data-path", str(others), *one_step),
        "same": words("same", *EVERY, "--validation.data-path", all_clips),
        "nothing": words("nothing", *EVERY),
        "evaluated-alone": evaluate("on", "--all"),
        "none-kept": evaluate("own", "--data-path", "none.csv"),
    }
    done = dict(zip(pairs, ranks.train(list(pairs.values()), 2, folder / "p1"), strict=True))
    done |= dict(zip(single, ranks.train(list(single.values()), 1, folder / "p2"), strict=True))
    return Runs(folder, done)


def one_bad(folder: Path) -> list[str]:
    """Words for validation on two clips in buckets of their own, of which one cannot be read."""
    (folder / "bad.mp4").write_bytes(b"no video")
    good = folder / "clips" / "clips" / "00000.mp4"
    shutil.copy(good, folder / "good.mp4")
    rows = f"{folder}/good.mp4,a line,9,64,64\n{folder}/bad.mp4,a line,5,64,64\n"
    (folder / "two.csv").write_text(f"path,text,num_frames,height,width\n{rows}")
    lengths = "{'16px': {4: (1.0, 4), 8: (1.0, 4)}}"
    return ["--bucket-config", lengths, "--validation.data-path", str(folder / "two.csv")]


@pytest.fixture(scope="module")
def engines(place: Place) -> Runs:
    """Runs of two ranks in bf16, and of the engine whose forward pass gathers weights."""
    words, native, bf16 = place.words, ["--engine", "native"], ["--dtype", "bf16"]
    pairs = {
        "fp32": words("fp32", *KEEP, *EVERY, "--max-steps", "1"),
        "bf16-off": words("bf16-off", *KEEP, *bf16),
        "bf16": words("bf16", *KEEP, *EVERY, *bf16),
        "native-off": words("native-off", *KEEP, *native),
        "native": words("native", *KEEP, *EVERY, *native),
        "few": words("few", *KEEP, *EVERY, *native, "--validation.clips", "4"),
        "one-bad": words("one-bad", *EVERY, *native, *one_bad(place.folder), "--max-steps", "1"),
        "evaluated-bf16": place.evaluate("bf16"),
    }
    done = ranks.train(list(pairs.values()), 2, place.folder / "p3")
    return Runs(place.folder, dict(zip(pairs, done, strict=True)))


@pytest.mark.long
def test_training_is_the_same_with_and_without_it(runs: Runs) -> None:
    require_equal(runs, "off", "on")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["bf16", "native"])
def test_so_it_is_in_other_engines(engines: Runs, engine: str) -> None:
    require_equal(engines, f"{engine}-off", engine)


def require_equal(runs: Runs, off: str, on: str) -> None:
    for name in (off, on):
        assert [rank.code for rank in runs.done[name]] == [0, 0], runs.done[name][0].err
    assert runs.steps(on) == runs.steps(off)
    assert [rank.rows for rank in runs.done[on]] == [rank.rows for rank in runs.done[off]]
    last = "epoch0-global_step8"
    for part in ("model", "ema", "optimizer"):
        before = {p.name: p.read_bytes() for p in (runs.folder / off / last / part).iterdir()}
        after = {p.name: p.read_bytes() for p in (runs.folder / on / last / part).iterdir()}
        assert after == before, part
    assert sorted(runs.measured(on)) == [0, 4, 8]
    assert runs.measured(off) == {}


def test_no_clip_that_is_measured_is_trained_on(runs: Runs) -> None:
    rows = {row for rank in runs.done["on"] for step in rank.rows for row in step}
    clips = {e.name: e.data for e in read(runs.folder / "on") if isinstance(e, Event)}["epoch"]
    assert clips["left_out"]["kept for validation"] == 96 - clips["clips"] - sum(
        count for why, count in clips["left_out"].items() if why != "kept for validation"
    )
    assert clips["left_out"]["kept for validation"] >= runs.measured("on")[0]["model"]["clips"]
    assert len(rows) <= clips["clips"]


def test_loss_falls_and_a_resumed_run_measures_the_same(runs: Runs) -> None:
    found = runs.measured("on")
    assert found[8]["model"]["loss"] < found[4]["model"]["loss"] < found[0]["model"]["loss"]
    assert found[0]["ema"] == found[0]["model"]
    assert found[8]["ema"]["loss"] != found[8]["model"]["loss"]
    resumed = runs.measured("resumed")
    assert sorted(resumed) == [8]
    for name in ("model", "ema"):
        assert resumed[8][name] == found[8][name]


def test_the_number_of_ranks_changes_no_bit(runs: Runs) -> None:
    assert runs.measured("alone")[0]["model"] == runs.measured("on")[0]["model"]
    assert runs.evaluated("evaluated") == runs.evaluated("evaluated-alone")


def test_a_checkpoint_is_evaluated_as_in_its_run(runs: Runs) -> None:
    found = runs.evaluated("evaluated")
    assert sorted(found) == [(4, "ema"), (4, "model"), (8, "ema"), (8, "model")]
    for (step, name), one in found.items():
        own = runs.measured("on")[step][name]
        assert {key: one[key] for key in own} == own


@pytest.mark.long
def test_so_it_is_beside_the_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sampler of `clusterctl serve --validate` measures it."""
    alone = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "x", "MASTER_PORT": 1}
    for name, value in alone.items():
        monkeypatch.setenv(name, str(value))
    run, losses = runs.folder / "on", Losses(Models(torch.device("cpu"), checked=True))
    for step in (8, 4):
        name = f"epoch0-global_step{step}"
        place = {"save_dir": str(run / "samples/validation" / name), "stamp": "5 9"}
        request = {"run_dir": str(run), "checkpoint": name, "sealed_s": 5.0, **place}
        assert not losses.is_finished(request)
        losses.measure(request, lambda: None)
        assert losses.is_finished(request)
        assert not losses.is_finished({**request, "stamp": "another"})
        event = read_object(run / "samples/validation" / name / "losses.json")["event"]
        assert (event["step"], event["time_s"], event["data"]["checkpoint"]) == (step, 5.0, name)
        own = runs.measured("on")[step]
        assert {key: event["data"][key] for key in ("model", "ema")} == {
            key: own[key] for key in ("model", "ema")
        }


@pytest.mark.slow
def test_a_checkpoint_in_bf16_is_evaluated_as_in_its_run(engines: Runs) -> None:
    for name in ("model", "ema"):
        own = engines.measured("bf16")[8][name]
        one = engines.evaluated("evaluated-bf16")[8, name]
        assert {key: one[key] for key in own} == own


@pytest.mark.slow
def test_where_a_pass_gathers_weights_ranks_without_clips_hold_up_nobody(engines: Runs) -> None:
    assert [rank.code for rank in engines.done["few"]] == [0, 0], engines.done["few"][0].err
    assert engines.measured("few")[8]["model"]["clips"] == 4
    loss = engines.measured("native")[0]["model"]["loss"]
    assert loss == pytest.approx(engines.measured("fp32")[0]["model"]["loss"], rel=1e-6)


def test_clips_that_cannot_be_read_do_not_count(runs: Runs) -> None:
    assert runs.done["damaged"][0].code == 0, runs.done["damaged"][0].err
    whole, damaged = (runs.measured(name)[0]["model"] for name in ("alone", "damaged-run"))
    assert damaged["clips"] < whole["clips"]
    texts = [e.text for e in read(runs.folder / "damaged-run") if isinstance(e, Event)]
    assert any("clips kept for validation cannot be read and do not count" in t for t in texts)


def test_a_manifest_of_its_own_and_what_it_may_not_be(runs: Runs) -> None:
    assert runs.done["own"][0].code == 0, runs.done["own"][0].err
    assert runs.measured("own")[0]["model"]["clips"] == 16
    assert runs.done["same"][0].code == 2
    assert "they would be trained on" in runs.done["same"][0].err
    assert runs.done["nothing"][0].code == 2
    assert "validation.share = 0.01 keeps one of a hundred" in runs.done["nothing"][0].err
    assert runs.done["none-kept"][0].code == 2
    assert "none.csv" in runs.done["none-kept"][0].err


def test_average_of_a_checkpoint_is_what_was_measured(runs: Runs) -> None:
    last = runs.folder / "on" / "epoch0-global_step8"
    model, ema = read_weights(last / "model"), read_weights(last / "ema")
    assert any((model[name] != ema[name]).any() for name in ema)


@pytest.mark.slow
def test_rank_that_can_read_none_of_its_clips_does_not_end_the_run(engines: Runs) -> None:
    """Its engine gathers weights in a forward pass, so it must make as many as the others."""
    done = engines.done["one-bad"]
    assert [rank.code for rank in done] == [0, 0], done[0].err
    (event,) = [e for e in read(engines.folder / "one-bad") if "cannot be read" in str(e)]
    assert event.text.startswith(
        "1 of the clips kept for validation cannot be read and do not count"
    )
    assert "bad.mp4: " in event.text
    measured = engines.measured("one-bad")
    assert set(measured) == {0, 1}
    assert {one["model"]["clips"] for one in measured.values()} == {1}


def test_resumed_run_reads_its_validation_clips_before_it_trains(runs: Runs) -> None:
    done = runs.done["resumed-bad"]
    assert [rank.code for rank in done] == [0, 0], done[0].err
    events = [e for e in read(runs.folder / "resumed-bad") if isinstance(e, Event)]
    (told,) = [e for e in events if "kept for validation cannot be read" in e.text]
    assert told.step == 4
    assert [e.step for e in events if e.name == "validation"] == [5]  # at its end


@pytest.mark.parametrize("name", ["native-off", "native"])
def test_engine_that_shards_by_torch_has_nothing_to_warn_of(engines: Runs, name: str) -> None:
    assert "Warning" not in "".join(rank.out + rank.err for rank in engines.done[name])
