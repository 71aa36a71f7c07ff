"""Config files, overrides, and the errors that help."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import load as configuration
from trainer.config.load import Config, from_dict, load, to_dict
from trainer.errors import ConfigError

# The keys of Lambda's published stage files (Open-Sora 1.2), shortened tables.
STAGE = """
dataset = dict(type="VariableVideoTextDataset", transform_name="resize_crop")
bucket_config = {  # 12s/it
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27)},
    "720p": {1: (0.0, None)},
}
grad_checkpoint = True
num_workers = 8
num_bucket_build_workers = 16
dtype = "bf16"
plugin = "zero2"
model = dict(
    type="STDiT3-XL/2",
    from_pretrained=None,
    qk_norm=True,
    enable_flash_attn=True,
    enable_layernorm_kernel=True,
    freeze_y_embedder=True,
)
vae = dict(
    type="OpenSoraVAE_V1_2",
    from_pretrained="hpcai-tech/OpenSora-VAE-v1.2",
    micro_frame_size=17,
    micro_batch_size=4,
)
text_encoder = dict(
    type="t5", from_pretrained="DeepFloyd/t5-v1_1-xxl", model_max_length=300, shardformer=True
)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
mask_ratios = {"random": 0.005, "intepolate": 0.002}
seed = 42
outputs = "outputs"
wandb = False
epochs = 5
log_every = 10
ckpt_every = 100
load = None
grad_clip = 1.0
lr = 1.6e-4
weight_decay = 0.01
ema_decay = 0.99
adam_eps = 1e-15
warmup_steps = 400
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_published_stage_file_loads_unchanged(tmp_path: Path) -> None:
    config = load(write(tmp_path, "stage1.py", STAGE))
    assert config.lr == 1.6e-4
    assert config.wandb == "off"
    assert config.bucket_config["144p"][102] == ((1.0, 0.33), 27)
    assert config.model.type == "STDiT3-XL/2"
    assert config.model.options["freeze_y_embedder"] is True
    assert config.scheduler.sample_method == "logit-normal"
    assert any("num_bucket_build_workers" in note for note in config.notes)


def test_bases_merge_and_delete_drops_what_stood_below(tmp_path: Path) -> None:
    write(tmp_path, "base.py", STAGE)
    child = write(
        tmp_path,
        "child.py",
        """
_base_ = "base.py"
_steps = 7
max_steps = _steps * 2
dataset = dict(frame_interval=2)
bucket_config = dict(_delete_=True, **{"256": {16: (1.0, 2)}})
scheduler = {"loc": 1}
""",
    )
    config = load(child)
    assert config.max_steps == 14
    assert config.dataset.type == "VariableVideoTextDataset"
    assert config.dataset.frame_interval == 2
    assert config.bucket_config == {"256": {16: (1.0, 2)}}
    assert config.scheduler.loc == 1.0
    assert config.scheduler.use_timestep_transform


@pytest.mark.long
def test_base_may_be_one_of_ours_by_its_short_name(tmp_path: Path) -> None:
    write(tmp_path, "demo", "lr = 7.0")  # would be run: it is ./demo
    own = write(tmp_path, "own.py", "_base_ = 'demo'\nvae = dict(channels=3)\nmax_steps = 9\n")
    config, ours = load(own), load("demo")
    assert (config.vae.channels, config.max_steps) == (3, 9)
    assert (config.lr, config.model) == (ours.lr, ours.model)
    assert load(write(tmp_path, "own.py", "_base_ = './demo'\nmax_steps = 9\n")).lr == 7.0


@pytest.mark.long
def test_two_bases_may_not_set_the_same_key_and_circles_are_named(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "lr = 1.0")
    write(tmp_path, "b.py", "lr = 2.0")
    with pytest.raises(ConfigError, match=r"a\.py:1 and .*b\.py:1"):
        load(write(tmp_path, "c.py", "_base_ = ['a.py', 'b.py']"))
    write(tmp_path, "x.py", "_base_ = 'y.py'")
    with pytest.raises(ConfigError, match="inherit in a circle"):
        load(write(tmp_path, "y.py", "_base_ = 'x.py'"))


@pytest.mark.parametrize(
    ("words", "read", "expected"),
    [
        (["--lr", "1e-5"], "lr", 1e-5),
        (["--lr=1e-5"], "lr", 1e-5),
        (["--dataset.data-path", "x.csv"], "dataset.data_path", "x.csv"),
        (["--data-path", "x.csv"], "dataset.data_path", "x.csv"),
        (["--max-steps", "none"], "max_steps", None),
        (["--grad-checkpoint", "False"], "grad_checkpoint", False),
        (["--grad-checkpoint", "4"], "grad_checkpoint", 4),
        (["--grad-checkpoint", "24000 MB"], "grad_checkpoint", "24000 MB"),
        (["--grad-checkpoint", "all"], "grad_checkpoint", True),
        (["--grad-checkpoint", "--seed", "7"], "grad_checkpoint", True),
        (["--start-from-scratch", "--seed", "7"], "seed", 7),
        (["--start-from-scratch", "--seed", "7"], "start_from_scratch", True),
        (["--wandb", "True"], "wandb", "online"),
        (["--wandb"], "wandb", "online"),
        (["--wandb", "False"], "wandb", "off"),
        (["--keep-n-latest", "3"], "keep_checkpoints", 3),
        (["--keep-checkpoints", "-1"], "keep_checkpoints", -1),
        (["--adam-betas", "(0.9, 0.99)"], "adam_betas", (0.9, 0.99)),
        (["--model.depth", "3"], "model.options", {"depth": 3}),
    ],
)
def test_overrides_are_typed_by_the_field(
    tmp_path: Path, words: list[str], read: str, expected: object
) -> None:
    path = write(tmp_path, "c.py", "model = dict(type='STDiT3')\ngrad_checkpoint = True")
    value: object = load(path, words)
    for name in read.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_overrides_reach_into_bucket_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "c.py", "bucket_config = {'144p': {51: (1.0, 8), 1: (1.0, 40)}}")
    config = load(path, ["--bucket_config.144p.51", "(0.5, 4)"])
    assert config.bucket_config == {"144p": {51: (0.5, 4), 1: (1.0, 40)}}


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("\n\nwarmup_step = 3", [], r"c\.py:3: there is no key warmup_step\n  hint: did you mean warmup_steps\?"),
        ("dataset = dict(\n  data_pth='x')", [], r"c\.py:2: there is no key dataset.data_pth\n  hint: did you mean dataset.data_path"),
        ("model = dict(type='STDiT3',\n  deptth=3)", [], r"c\.py:2: .*\n.*did you mean model\.depth"),
        ("", ["--dataset.data-pth", "x"], "--dataset.data-pth: .*\n.*did you mean dataset.data_path"),
        ("", ["--lr", "nan"], "--lr: lr must be a finite number; not nan"),
        ("lr = -1e-4", [], r"c\.py:1: lr must be at least 0; not -0.0001"),
        ("", ["--adam-betas", "(0.9, 1)"], r"adam_betas must be at least 0 and below 1; not \(0\.9, 1\.0\)"),
        ("dataset = dict(\n  frame_interval=0)", [], r"c\.py:2: dataset\.frame_interval must be at least 1; not 0"),
        ("dataset = dict(resize='bicubic')", [], "dataset.resize must be one of bilinear, area, torch; not 'bicubic'"),
        ("dataset = dict(balance_costs='flopss')", [], "dataset.balance_costs must be one of flops, timed; not 'flopss'"),
        ("model = dict(type='STDiT3', depth=0)", [], r"c\.py:1: model\.depth must be at least 1; not 0"),
        ("", ["--model.patch-size", "(0, 2, 2)"], "model.patch_size must be at least 1"),
        ("", ["--seed", "-1"], "seed must be at least 0 and at most 4,294,967,295; not -1"),
        ("", ["--lr", "fast"], "--lr must be a number, not 'fast'"),
        ("lr = '1e-4'", [], r"c\.py:1: lr must be a number, not '1e-4' \(str\)"),
        ("seed = True", [], "seed must be an integer"),
        ("", ["--lr"], "--lr needs a value"),
        ("", ["lr", "3"], "'lr' is neither a flag"),
        ("", ["--load", "x/epoch0-global_step5", "x/epoch0-global_step15", "x/epoch1-global_step20", "--lr", "1"],
         "--load takes one value, 3 are given.*\n.*a run directory means its newest"),
        ("", ["x/epoch0-global_step15"], "is neither a flag.*\n.*a run directory means its newest"),
        ("", ["--lr", "1e-4", "2e-4"], "--lr takes one value, 2 are given"),
        ("vae = dict(type='OpenSoraVAE_V1_3')", [], "is Open-Sora 1.3's; there is OpenSoraVAE_V1_2"),
        ("dataset = dict(type='text')", [], "trainer.infer --prompt-path"),
        ("grad_ckpt_setting = 5", [], "say grad_checkpoint, for a memory budget too"),
        ("accumulation_steps = 0", [], r"c\.py:1: accumulation_steps must be at least 1"),
        ("", ["--sp-size", "2"], "--sp-size: sp_size is not supported"),
        ("grad_checkpoint = -1", [], r"c\.py:1: grad_checkpoint must be auto, off, all"),
        ("", ["--grad-checkpoint", "some"], "--grad-checkpoint: grad_checkpoint must be auto, off, all"),
        ("positions = 'bf16'", [], r"c\.py:1: positions must be one of fp32-exact, bf16-compat"),
        ("dtype = 'fp16'", [], r"c\.py:1: dtype must be one of bf16, fp32"),
        ("keep_checkpoints = 0", [], "-1 .all. or at least 1"),
        ("model = dict(type='UNet')", [], "model.type 'UNet' is not known"),
        ("import os\nlr = os", [], None),
        ("lr = object()", [], "lr is a object; a config holds"),
        ("lr = 1 / 0", [], r"c\.py:1: ZeroDivisionError"),
        ("lr = = 1", [], r"c\.py:1: SyntaxError"),
        ("import os\nlr = os._exit(3)", [], "ended Python .*exit code 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, text: str, words: list[str], message: str | None
) -> None:
    path = write(tmp_path, "c.py", text)
    if message is None:
        assert load(path, words) == Config()
        return
    with pytest.raises(ConfigError) as caught:
        load(path, words)
    assert re.search(message, caught.value.full_text())
    assert caught.value.exit_code == 2


def test_refused_keys_that_ask_for_nothing_are_fine(tmp_path: Path) -> None:
    text = "accumulation_steps = 1\nsp_size = 1\nbatch_size = None\nload_text_features = False"
    assert load(write(tmp_path, "c.py", text)) == Config()


def test_a_config_file_leaves_no_trace_in_this_process(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "c.py",
        "import os, sys, wave\nos.environ['LEFT_BEHIND'] = '1'\nsys.path.append('/left')\n"
        "_ = os.chdir('/')\nprint('noise')\nseed = 5\n",
    )
    before, modules = Path.cwd(), set(sys.modules)
    assert load(path).seed == 5
    assert "LEFT_BEHIND" not in os.environ
    assert "/left" not in sys.path
    assert Path.cwd() == before
    assert "wave" not in set(sys.modules) - modules


def test_the_resolved_config_can_be_read_back(tmp_path: Path) -> None:
    config = load(
        write(tmp_path, "c.py", STAGE), ["--model.depth", "2", "--vae.scale", "(1.0, 2.0)"]
    )
    shown = write(tmp_path, "shown.py", configuration.as_python(config))
    plain = dataclasses.replace(config, notes=())
    assert dataclasses.replace(load(shown), notes=()) == plain
    again = from_dict(to_dict(config))
    assert to_dict(again)["model"] == to_dict(config)["model"]
    assert list(again.bucket_config["144p"]) == [1, 51, 102]
    assert again.vae.scale == (1.0, 2.0)


@pytest.mark.long
def test_show_prints_the_config_and_errors_have_exit_code_2(tmp_path: Path) -> None:
    path = write(tmp_path, "c.py", "lr = 2e-4")
    command = [sys.executable, "-m", "trainer.config", "show", str(path)]
    done = subprocess.run([*command, "--seed", "3"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "lr = 0.0002" in done.stdout
    assert "seed = 3" in done.stdout
    wrong = subprocess.run([*command, "--sed", "3"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "did you mean seed?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_short_names_find_the_files_of_the_package() -> None:
    with pytest.raises(ConfigError, match=r"there is no config nowhere in .*; short names are"):
        load("nowhere")


@pytest.mark.long
@given(
    lr=st.floats(1e-8, 1.0),
    steps=st.none() | st.integers(1, 10**9),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    batch=st.integers(1, 64),
    clip=st.floats(0, 10),
)
def test_whatever_is_set_survives_json(
    lr: float, steps: int | None, betas: tuple[float, float], batch: int, clip: float
) -> None:
    config = dataclasses.replace(
        Config(),
        lr=lr,
        max_steps=steps,
        adam_betas=betas,
        grad_clip=clip,
        bucket_config={"144p": {51: (1.0, batch)}},
    )
    back = from_dict(json.loads(json.dumps(to_dict(config))))
    assert to_dict(back)["bucket_config"]["144p"].keys() == {51}
    same = dataclasses.replace(back, bucket_config=config.bucket_config, notes=config.notes)
    assert same == config


def test_config_of_a_run_is_read_as_data(tmp_path: Path) -> None:
    wanted = load("demo", ["--lr", "3e-4"])
    (tmp_path / "config.json").write_text(json.dumps({"commit": None, "config": to_dict(wanted)}))
    for name in (tmp_path, tmp_path / "config.json"):
        assert load(name).lr == 3e-4
        with pytest.raises(ConfigError, match="takes no overrides, here --lr"):
            load(name, ["--lr", "1"])
    (tmp_path / "config.json").write_text("[null]")
    with pytest.raises(ConfigError, match=r"config\.json is not a run's config"):
        load(tmp_path)
