"""VAE and text encoder in the benchmark: what is run, its FLOP, and its share of a step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.bench.test_command import CONFIG, ONE_STEP, SHAPE, SPEC, measured
from trainer.bench import __main__ as bench
from trainer.bench.child import Kind, Outcome
from trainer.bench.encoders import (
    TEXT,
    TINY,
    VAE,
    XXL,
    Encoding,
    encode_trial,
    random_text,
    random_vae,
    timed,
)
from trainer.bench.rows import Row, print_table
from trainer.config.keys import TextEncoderConfig, VaeConfig
from trainer.models.text import build_tiny_t5

CPU = torch.device("cpu")
PUBLISHED = replace(
    CONFIG,
    vae=VaeConfig("OpenSoraVAE_V1_2", from_pretrained="hpcai-tech/OpenSora-VAE-v1.2"),
    text_encoder=TextEncoderConfig("t5", from_pretrained="DeepFloyd/t5-v1_1-xxl"),
)
SPEC_PUBLISHED = replace(SPEC, config=PUBLISHED, steps=1)


def nothing(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("name", [pytest.param(VAE, marks=pytest.mark.slow), TEXT])
def test_small_encoders_of_the_published_kind_are_timed(name: str) -> None:
    found = encode_trial(SPEC_PUBLISHED, name, True, nothing)
    assert min(found.seconds, found.first_s, found.flops) > 0
    assert found.peak_bytes >= found.start_bytes > 0
    assert found.weights == "random, small sizes"


def test_the_configs_own_tiny_encoders_are_its_sizes() -> None:
    own = replace(SPEC, config=replace(CONFIG, vae=VaeConfig("identity", channels=1)))
    assert encode_trial(own, VAE, False, nothing).weights == "none"
    assert encode_trial(own, TEXT, False, nothing).weights == "random, the config's sizes"


@pytest.mark.long
def test_weights_at_hand_are_used(tmp_path: Path) -> None:
    folder = build_tiny_t5(tmp_path / "t5", ["a red circle"], d_model=16)
    text = TextEncoderConfig("t5", from_pretrained=str(folder), model_max_length=6)
    spec = replace(SPEC_PUBLISHED, config=replace(PUBLISHED, text_encoder=text))
    assert encode_trial(spec, TEXT, False, nothing).weights == str(folder)


def test_every_caption_has_the_tokens_asked_for_and_flop_grow_with_them() -> None:
    found = {}
    for tokens in (3, 6):
        encoder = random_text(TINY, tokens, 6, torch.float32, CPU)
        features, mask = encoder.encode(["", ""])
        assert features.shape == (2, 1, 6, TINY["d_model"])
        assert mask.sum(1).tolist() == [tokens, tokens]
        found[tokens] = timed(lambda encoder=encoder: encoder.encode([""]), CPU, 1).flops
    assert found[6] >= 2 * found[3] > 0


@pytest.mark.long
def test_random_encoders_have_the_published_sizes() -> None:
    meta = torch.device("meta")
    text = random_text(XXL, 300, 300, torch.bfloat16, meta).model
    vae = random_vae(False, torch.bfloat16, meta)
    sizes = [sum(p.numel() for p in network.parameters()) for network in (text, vae)]
    assert sizes == [4_762_310_656, 393_341_007]
    assert {p.dtype for p in (*text.parameters(), *vae.parameters())} == {torch.bfloat16}


def encoding(seconds: float) -> Outcome:
    found = Encoding(seconds, 2 * seconds, 10**9, 10**8, 10**12, "random, published sizes")
    return Outcome(Kind.MEASURED, found)


def test_shares_are_of_encoders_and_step_together(capsys: pytest.CaptureFixture[str]) -> None:
    step = Outcome(Kind.MEASURED, measured(1.0))
    row = Row(SHAPE, "ours", 100, step, {VAE: encoding(0.2), TEXT: encoding(0.8)})
    document = row.to_json(None, {})
    assert document["encoders"][VAE]["share_of_step"] == pytest.approx(0.1)
    assert document["encoders"][TEXT]["share_of_step"] == pytest.approx(0.4)
    assert document["encoders"][TEXT]["flops"] == 10**12
    print_table([row], None)
    parts = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    (head, vae, text), weights = parts[-2:]
    assert head.split()[:3] == ["bucket", "encoder", "batch"]
    assert ("10%" in vae.split(), "40%" in text.split()) == (True, True)
    assert weights[1].split(maxsplit=2) == ["32px:9", "vae", "random, published sizes"]


def test_an_encoder_that_failed_has_its_reason_and_no_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    died = Outcome(Kind.OUT_OF_MEMORY, reason="CUDA out of memory")
    step = Outcome(Kind.MEASURED, measured(1.0))
    row = Row(SHAPE, "ours", 100, step, {VAE: encoding(0.2), TEXT: died})
    document = row.to_json(None, {})["encoders"]
    assert document[VAE]["share_of_step"] is None
    assert document[TEXT] == {"result": "out of memory", "reason": "CUDA out of memory"}
    print_table([row], None)
    assert capsys.readouterr().out.splitlines()[-1] == "32px:9 text: CUDA out of memory"


@pytest.mark.slow
def test_the_command_measures_encoders_in_their_own_processes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main([*ONE_STEP, "--encoders", "--json"]) == 0
    said = capsys.readouterr()
    (row,) = json.loads(said.out)["rows"]
    assert [part["result"] for part in row["encoders"].values()] == ["measured", "measured"]
    assert sum(part["share_of_step"] for part in row["encoders"].values()) < 1
    told = [line.split(", ")[-1] for line in said.err.splitlines()]
    # A step that takes long has a line of its own.
    assert [one for one in told if ": step " not in one] == ["ours", "vae", "text"]
