"""Training from a feature cache is the training it was before, without VAE and text encoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.ranks import REPO, TINY
from trainer.data.digits import main as render
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.weights.load import read_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # half a minute of runs

# Several runs in a process: importing torch takes longer than they do.
RUNS = """
import gc, json, sys
import torch
from trainer import train
from trainer.data.__main__ import main as data
config, clips, folder = sys.argv[1:]
def run(name, *words):
    return train.main([config, "--engine", "native", "--data-path", clips, "--run-dir", folder + "/" + name, *words])
codes, cache = {}, folder + "/cache"
cached = ["--dataset.features", cache]
assert data(["encode", config, cache, "-q", "--data-path", clips]) == 0
for name in [name for name in sys.modules if name.split(".")[0] in ("transformers", "diffusers")]:
    del sys.modules[name]  # encoding needed them
codes["cached"] = run("cached", *cached)
codes["loaded"] = sorted({n.split(".")[0] for n in sys.modules} & {"transformers", "diffusers", "av"})
gc.collect()
codes["encoders"] = sum(type(thing).__name__ in ("T5EncoderModel", "OpenSoraVAE", "TextEncoder") for thing in gc.get_objects())
codes["timed"] = run("timed", *cached, "--dataset.balance-costs", "timed", "--max-steps", "1")
codes["resumed"] = run("resumed", *cached, "--load", folder + "/cached/epoch0-global_step4")
codes["longer"] = run("longer", *cached, "--text-encoder.model-max-length", "9")
codes["none"] = run("none", "--dataset.features", folder + "/nothing")
codes["plain"] = run("plain")
codes["plain-resumed"] = run("plain-resumed", "--load", folder + "/cached/epoch0-global_step4")
codes["cached-resumed"] = run("cached-resumed", *cached, "--load", folder + "/plain/epoch0-global_step4")
start = ["--ckpt-path", folder + "/plain/epoch0-global_step8", "--model.freeze_y_embedder", "True", "--max-steps", "3"]
projected = folder + "/projected"
codes["embedder-trained"] = data(["encode", config, projected, "-q", "--data-path", clips, "--caption-embedder"])
codes["encode-projected"] = data(["encode", config, projected, "-q", "--data-path", clips, "--caption-embedder", *start])
codes["from-plain"] = run("from-plain", *start)
codes["from-projected"] = run("from-projected", *start, "--dataset.features", projected)
codes["unfrozen"] = run("unfrozen", *start[:2], "--dataset.features", projected)
codes["other-embedder"] = run("other-embedder", *start[2:], "--dataset.features", projected)
print(json.dumps(codes))
"""


@dataclass(frozen=True)
class Runs:
    """Exit codes by name, what was said, and the folder of all runs."""

    codes: dict[str, object]
    err: str
    folder: Path

    def records(self, name: str) -> list[tuple[object, ...]]:
        """Of each step, what must not depend on where latents come from."""
        return [
            (r.step, r.epoch, r.loss, r.grad_norm, r.samples, r.tokens, r.bucket)
            for r in read(self.folder / name)
            if isinstance(r, StepRecord)
        ]

    def weights(self, name: str) -> bytes:
        return (self.folder / name / "epoch0-global_step8/model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("features")
    render(["--out", str(folder / "digits"), "--clips", "48", "--seed", "1"])
    (folder / "tiny.py").write_text(TINY)
    words = [str(folder / "tiny.py"), str(folder / "digits/digits.csv"), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return Runs(json.loads(done.stdout.splitlines()[-1]), done.stderr, folder)


def test_losses_order_and_weights_are_those_of_encoding_on_the_fly(runs: Runs) -> None:
    assert runs.codes["cached"] == runs.codes["plain"] == 0
    assert len(runs.records("plain")) == 8
    assert runs.records("cached") == runs.records("plain")
    assert runs.weights("cached") == runs.weights("plain")


def test_neither_vae_nor_text_encoder_is_in_memory(runs: Runs) -> None:
    assert runs.codes["loaded"] == []
    assert runs.codes["encoders"] == 0


@pytest.mark.parametrize("name", ["resumed", "plain-resumed", "cached-resumed"])
def test_a_run_goes_on_from_features_or_clips_whatever_it_began_with(runs: Runs, name: str) -> None:
    assert runs.codes[name] == 0
    assert runs.records(name) == runs.records("plain")[4:]
    assert runs.weights(name) == runs.weights("plain")


def test_the_run_directory_has_the_text_encoder_that_sampling_needs(runs: Runs) -> None:
    encoder = runs.folder / "cached/text_encoder/model.safetensors"
    assert (
        encoder.read_bytes() == (runs.folder / "cache/text_encoder/model.safetensors").read_bytes()
    )


def test_costs_can_be_timed_without_encoders(runs: Runs) -> None:
    assert runs.codes["timed"] == 0


def test_captions_behind_the_frozen_embedder_train_the_same(runs: Runs) -> None:
    """The draws of dropped captions are the same; projecting other batches rounds differently."""
    names = ("encode-projected", "from-plain", "from-projected")
    assert [runs.codes[name] for name in names] == [0, 0, 0], runs.err
    key = json.loads((runs.folder / "projected/features.json").read_text())
    assert (key["text_channels"], key["encoder_channels"]) == (32, 64)
    plain, projected = ([r[2] for r in runs.records(name)] for name in names[1:])
    assert len(plain) == 3
    assert projected == pytest.approx(plain, rel=1e-5)
    kept = [read_weights(runs.folder / name / "epoch0-global_step3") for name in names[1:]]
    assert kept[0].keys() == kept[1].keys()
    for name in (n for n in kept[0] if n.startswith("y_embedder.")):
        assert kept[0][name].equal(kept[1][name])


def test_projected_captions_are_refused_where_they_would_be_wrong(runs: Runs) -> None:
    assert runs.codes["embedder-trained"] == runs.codes["unfrozen"] == 2
    assert runs.codes["other-embedder"] == 2
    for said in (
        "this config trains it",
        "this run trains it",
        "made with another caption embedder",
    ):
        assert said in runs.err


def test_features_of_other_settings_are_refused_with_what_to_run(runs: Runs) -> None:
    assert (runs.codes["longer"], runs.codes["none"]) == (2, 2)
    said = "cache were made with text_encoder.model_max_length 6, this run has 9"
    assert said in runs.err
    assert "python -m trainer.data encode CONFIG OTHER-FOLDER" in runs.err
    assert f"there is no feature cache at {runs.folder}/nothing" in runs.err
    assert "Traceback" not in runs.err
    events = [e for e in read(runs.folder / "longer") if isinstance(e, Event)]
    assert not [e for e in events if e.name == "start"]
