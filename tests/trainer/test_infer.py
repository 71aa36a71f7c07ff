"""From a checkpoint and prompts to files, on the real classes with small numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trainer import config as configuration
from trainer import infer
from trainer.errors import CheckpointError, ConfigError
from trainer.mp4 import read_mp4
from trainer.parts import build_parts, make_tiny_text_encoder
from trainer.weights import read_weights

CONFIG = """
model = dict(type="STDiT3", hidden_size=32, depth=1, num_heads=2, patch_size=(4, 4, 4), input_sq_size=16)
vae = dict(type="identity", channels=1)
text_encoder = dict(type="tiny_t5", model_max_length=6, d_model=16, num_layers=1)
scheduler = dict(type="rflow", num_sampling_steps=2, cfg_scale=2.0)
dtype = "fp32"
sample = dict(num_frames=8, image_size=(16, 16), fps=8.0, batch_size=2)
"""
PROMPTS = ("digit one", "digit two", "digit one")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A config file and a checkpoint inside a run directory, as training leaves them."""
    run_dir = tmp_path_factory.mktemp("run")
    file = run_dir / "small.py"
    file.write_text(CONFIG)
    config = configuration.load(file)
    make_tiny_text_encoder(config, run_dir, PROMPTS)
    torch.manual_seed(0)
    model = build_parts(config, run_dir).model
    checkpoint = run_dir / "epoch0-global_step7"
    for folder, scale in (("model", 1.0), ("ema", 0.5)):
        (checkpoint / folder).mkdir(parents=True)
        state = {name: value * scale for name, value in model.state_dict().items()}
        if folder == "ema":  # as in training: only what has a gradient
            trained = {name for name, p in model.named_parameters() if p.requires_grad}
            state = {name: value for name, value in state.items() if name in trained}
        save_file(state, checkpoint / folder / "model.safetensors")
    (checkpoint / "manifest.json").write_text('{"files": {}}')
    return file, checkpoint


def command(run: tuple[Path, Path], folder: Path, *more: str) -> list[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text(f"{PROMPTS[0]}\n\n{PROMPTS[1]}\n{PROMPTS[2]}\n")
    file, checkpoint = run
    words = [
        file,
        "--ckpt-path",
        checkpoint,
        "--prompt-path",
        prompts,
        "--save-dir",
        folder / "out",
    ]
    return [*map(str, words), *more]


def videos(folder: Path) -> list[np.ndarray]:
    return [read_mp4(path) for path in sorted((folder / "out").glob("*.mp4"))]


def test_every_prompt_becomes_a_video_and_a_place_on_the_sheet(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--upscale", "4")) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "out")
    assert "1 blank lines" in said.err
    assert "3 videos in" in said.err
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["contact_sheet.png", *(f"sample_{i:04d}.mp4" for i in range(3))]
    assert (tmp_path / "out" / "contact_sheet.png").read_bytes()[:4] == b"\x89PNG"
    assert all(video.shape == (8, 64, 64, 3) for video in videos(tmp_path))


def test_a_video_depends_on_the_seed_and_its_place_but_not_on_the_batch(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    made = {}
    for name, flags in {
        "one": ["--seed", "1"],
        "alone": ["--seed", "1", "--batch-size", "1"],
        "other": ["--seed", "2"],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        assert infer.main(command(run, folder, *flags)) == 0
        made[name] = videos(folder)
    for one, alone, other in zip(made["one"], made["alone"], made["other"], strict=True):
        assert np.abs(one.astype(int) - alone).max() <= 2  # another batch, other rounding
        assert np.abs(one.astype(int) - other).mean() > 5
    assert np.abs(made["one"][0].astype(int) - made["one"][2]).mean() > 5  # the same prompt twice


def test_a_run_directory_stands_for_its_newest_checkpoint(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(run[1].parent)
    assert infer.main(words) == 0
    assert len(videos(tmp_path)) == 3


def test_ema_is_the_default_and_the_weights_themselves_a_flag(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("ema", []), ("model", ["--weights", "model"])):
        folder = tmp_path / name
        folder.mkdir()
        assert infer.main(command(run, folder, "--cfg-scale", "1", *flags)) == 0
    difference = videos(tmp_path / "ema")[0].astype(int) - videos(tmp_path / "model")[0]
    assert np.abs(difference).mean() > 1


def test_a_run_goes_on_from_its_own_size_when_flags_say_so(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = ["--num-frames", "4", "--image-size", "24", "32", "--num-sampling-steps", "1"]
    assert infer.main(command(run, tmp_path, *flags)) == 0
    assert videos(tmp_path)[0].shape == (4, 24, 32, 3)


def test_expected_failures_are_one_sentence_and_write_nothing(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = command(run, tmp_path)
    wrong_model = [*good, "--model.hidden-size", "64"]
    assert infer.main(wrong_model) == 1
    assert "is not of this model" in capsys.readouterr().err
    nowhere = [str(tmp_path / "nowhere") if word == str(run[1]) else word for word in good]
    assert infer.main(nowhere) != 0
    (tmp_path / "prompts.txt").write_text("\n \n")
    assert infer.main(good) == 2
    assert "holds no prompt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_size_must_be_said_somewhere(run: tuple[Path, Path]) -> None:
    config = configuration.load(run[0], ["--sample.num-frames", "none"])
    with pytest.raises(ConfigError, match="how large"):
        infer.request_of(config, PROMPTS)


def test_shards_are_read_through_their_index_and_a_missing_one_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model-00001.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}'
    )
    assert sorted(read_weights(tmp_path)) == ["a", "b"]
    (tmp_path / "model-00002.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"model-00002\.safetensors cannot be read"):
        read_weights(tmp_path)
    (tmp_path / "model-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of 2 shards"):
        read_weights(tmp_path)
