"""The simulator: upstream's idle share as it was measured, ours under it, and errors that say why."""

import json

import pytest

from trainer.config.load import load
from trainer.data.__main__ import main
from trainer.data.tools.simulate import simulate, stand_in

# Open-Sora 1.2's stage 1 without its rarest buckets.
CONFIG = """
bucket_config = {
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27), 204: ((1.0, 0.1), 13)},
    "256": {1: (0.4, 297), 51: (0.5, 20), 102: ((0.5, 0.33), 10), 204: ((0.5, 0.1), 5)},
    "240p": {1: (0.3, 297), 51: (0.4, 20), 102: ((0.4, 0.33), 10), 204: ((0.4, 0.1), 5)},
    "360p": {1: (0.2, 141), 51: (0.15, 8), 102: ((0.15, 0.33), 4), 204: ((0.15, 0.1), 2)},
}
model = dict(type="STDiT3-XL/2")
vae = dict(type="OpenSoraVAE_V1_2")
text_encoder = dict(type="t5", model_max_length=300)
grad_checkpoint = True
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "stage.py"
    path.write_text(CONFIG)
    return path


@pytest.mark.long
def test_window_of_16_steps_idles_a_hundredth_where_random_order_idles_an_eighth(config):
    random, eight, sixteen = simulate(
        stand_in(1_000_000, mira=False), load(str(config)), 192, [8, 16]
    )
    assert random.order == "random"
    assert random.idle_share == pytest.approx(0.12, abs=0.02)
    assert sixteen.idle_share <= 0.01
    assert sixteen.idle_share < eight.idle_share < random.idle_share
    assert sixteen.buckets_a_step < random.buckets_a_step
    assert sixteen.steps == random.steps
    assert sixteen.hours < random.hours


@pytest.mark.long
def test_command_prints_the_price_beside_the_gain(config, capsys):
    assert main(["simulate", "openvid", str(config), "--ranks", "8", "--rows", "20000", "--windows", "4", "--accumulate", "4"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "buckets a step" in out
    assert "window 4" in out
    shares = {line[:13].strip(): float(line[13:].split("%")[0]) for line in out.splitlines()[2:]}
    assert shares["4 shared out"] < shares["4 a step"] / 2
    words = ["simulate", "openvid+mira", str(config), "--rows", "20000", "--ranks", "8", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["order"] for one in found][:2] == ["random", "window 1"]


def test_more_ranks_than_microbatches_is_one_sentence(config, capsys):
    assert main(["simulate", "openvid", str(config), "--rows", "500", "--ranks", "4000"]) == 2
    assert "epoch 0 has 27 microbatches, 4000 ranks need 4000 for a step" in capsys.readouterr().err


def test_window_that_is_too_wide_is_refused_by_name(config, capsys):
    words = ["simulate", "openvid", str(config), "--rows", "20000", "--ranks", "4"]
    assert main([*words, "--windows", "65"]) == 2
    assert "dataset.balance_window 65" in capsys.readouterr().err
