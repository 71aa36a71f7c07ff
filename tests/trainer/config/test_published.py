"""Config files and command lines of Open-Sora and of Lambda's fork, as people have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.config.load import load
from trainer.config.upstream import REFUSED, TYPES, our_type
from trainer.errors import ConfigError

# All keys of Lambda's files with a bump, in their order; the table is cut short.
BUMP = """
# Dataset settings
dataset = dict(
    type="VariableVideoTextDataset",
    transform_name="resize_crop",
)
bucket_config = {  # 12s/it
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27)},
    # ---
    "480p": {1: (1.0, 89), 408: (0.0, None)},
}
grad_checkpoint = True
num_workers = 8
num_bucket_build_workers = 16
#prefetch_factor = 2
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
    type="t5",
    from_pretrained="DeepFloyd/t5-v1_1-xxl",
    model_max_length=300,
    shardformer=True,
)
scheduler = dict(
    type="rflow",
    use_timestep_transform=True,
    sample_method="logit-normal",
)
mask_ratios = {
    "random": 0.0
}
seed = 42
outputs = "outputs_speedrun"
wandb = True
epochs = 10
log_every = 10
ckpt_every = 100
load = None
grad_clip = 1.0
ema_decay = 0.99
adam_eps = 1e-15
weight_decay = 0.01
lr_schedule = "1cycle"
anneal_strategy = "cos"
warmup_steps = 400
cooldown_steps = 400
lr = 1.6e-4
min_lr = 1.6e-5
max_lr=6.4e-4
"""


@pytest.fixture
def bump(tmp_path: Path) -> Path:
    (tmp_path / "stage4.py").write_text(BUMP)
    return tmp_path / "stage4.py"


def test_a_file_with_a_bump_loads_unchanged(bump: Path) -> None:
    config = load(bump)
    assert (config.lr_schedule, config.min_lr, config.max_lr) == ("1cycle", 1.6e-5, 6.4e-4)
    assert (config.outputs, config.wandb, config.epochs) == ("outputs_speedrun", "online", 10)
    assert config.bucket_config["480p"][408] == (0.0, None)
    assert config.mask_ratios == {"random": 0.0}
    assert config.model.options["enable_flash_attn"] is True
    noted = " ".join(config.notes)
    for key in ("num_bucket_build_workers", "vae.micro_batch_size", "text_encoder.shardformer"):
        assert key in noted


def test_a_child_in_mmengine_style_replaces_and_merges(bump: Path) -> None:
    child = bump.with_name("mine.py")
    child.write_text(
        '_base_ = ["stage4.py"]\n'
        'scheduler = dict(_delete_=True, type="rflow", timestep_transform="upstream")\n'
        'model = dict(type="STDiT3-3B/2")\n'
        "lr_schedule = None\n"
    )
    config = load(child)
    assert config.scheduler.sample_method == "uniform"
    assert config.scheduler.timestep_transform == "upstream"
    assert config.model.type == "STDiT3-3B/2"
    assert config.model.options["qk_norm"] is True
    assert config.lr_schedule is None


# The words after the config file, as the tutorials write them.
LINES = [
    "--data-path OpenVid1M.csv --ckpt-path pretrained_models/PixArt-Sigma-XL-2-2K-MS.pth",
    "--data-path OpenVid1M.csv --ckpt-path ./outputs_speedrun/008-STDiT3-XL-2/epoch4-global_step2210/",
    "--data-path OpenVid1M.csv --load outputs/010-STDiT3-XL-2/epoch4-global_step14778 --start-from-scratch",
    "--dataset.data-path datasets/pexels_45k_necessary.csv --model.from_pretrained ckpts/model.safetensors",
    "--lr 1e-5 --wandb True --outputs elsewhere --dtype bf16 --warmup-steps 10 --seed 1 --record-time",
    "--flash-attn True --layernorm-kernel False --allow-partial",
]


@pytest.mark.parametrize("line", LINES)
def test_the_tutorials_command_lines_are_understood(bump: Path, line: str) -> None:
    load(bump, line.split())


def test_what_the_command_lines_set(bump: Path) -> None:
    config = load(bump, " ".join(LINES).split())
    assert config.dataset.data_path == "datasets/pexels_45k_necessary.csv"
    assert config.model.from_pretrained == "ckpts/model.safetensors"
    assert config.model.allow_partial is True
    assert config.start_from_scratch is True
    assert (config.lr, config.outputs, config.warmup_steps) == (1e-5, "elsewhere", 10)


@pytest.mark.long
def test_what_a_later_version_does_to_fast_clips_is_refused_with_the_way_here(bump: Path) -> None:
    for words, said in {
        "--dataset.fps-max 24": "not thinned",
        "--dataset.vmaf True": "no motion score",
    }.items():
        with pytest.raises(ConfigError, match=said):
            load(bump, words.split())
    child = bump.with_name("mine.py")
    child.write_text('_base_ = ["stage4.py"]\ndataset = dict(vmaf=False, fps_max=None)\n')
    load(child)  # asks for nothing


@pytest.mark.parametrize("section", TYPES)
def test_every_name_of_the_table_is_ours_or_refused_with_a_reason(section: str) -> None:
    ours = set(TYPES[section].values())
    assert ours <= TYPES[section].keys()  # our own names are names too
    assert not TYPES[section].keys() & REFUSED.get(section, {}).keys()
    for name, reason in REFUSED.get(section, {}).items():
        with pytest.raises(ConfigError, match=r"stage1\.py:3: .* ") as caught:
            our_type(section, name, "stage1.py:3")
        assert reason in str(caught.value)


def test_upstreams_two_names_of_one_vae_are_one(tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text('vae = dict(type="VideoAutoencoderPipeline")')
    config = load(tmp_path / "c.py")
    assert config.vae.type == "OpenSoraVAE_V1_2"
    assert config.notes == ("vae.type VideoAutoencoderPipeline is OpenSoraVAE_V1_2 here",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = dict(type='STDiT3-XL')", r"c\.py:1: model\.type 'STDiT3-XL' is not known.*\n.*did you mean STDiT3-XL/2\?"),
        ("model = dict(type='flux')", r"c\.py:1: model\.type 'flux' is another network"),
        ("scheduler = dict(type='iddpm')", "rectified flow"),
        ("vae = dict(type='dc_ae')", "Open-Sora 2's; there is OpenSoraVAE_V1_2"),
        ("text_encoder = dict(type='tinyt5')", r"did you mean tiny_t5\?"),
        ("dataset = dict(type='BatchFeatureDataset')", "named by dataset.features"),
        ("model = dict(grad_ckpt_setting=(100, 100))", "model.grad_ckpt_setting is not supported: say grad_checkpoint"),
        ("model = dict(qk_norm_legacy=True)", "norms stand before the rotation"),
        ("scheduler = dict(timestep_transform='exact')", r"must be one of true-length, upstream"),
        ("lr_schedule = '1cycle'", r"c\.py:1: lr_schedule '1cycle' needs min_lr and max_lr"),
        ("lr_schedule = 'cosine'", r"c\.py:1: lr_schedule 'cosine' needs max_steps"),
        ("plugin = 'hybrid'", "plugin must be one of zero2, zero1, ddp"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "c.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.py")
    assert re.search(message, caught.value.full_text())


def test_what_asks_for_nothing_is_fine(tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text(
        "model = dict(qk_norm_legacy=False)\nscheduler = dict(timestep_transform='latent')\n"
        "text_encoder_output_dim = 4096\nvae_out_channels = 4\n"
    )
    config = load(tmp_path / "c.py")
    assert config.model.options == {}
    assert config.scheduler.timestep_transform == "true-length"


# The keys of Open-Sora 1.2's inference/sample.py.
SAMPLE = """
resolution = "240p"
aspect_ratio = "9:16"
num_frames = 51
fps = 24
frame_interval = 1
save_fps = 24
prompt_path = "./assets/texts/t2v_sora.txt"
save_dir = "./samples/samples/"
seed = 42
batch_size = 1
multi_resolution = "STDiT2"
dtype = "bf16"
condition_frame_length = 5
align = 5
model = dict(type="STDiT3-XL/2", from_pretrained="hpcai-tech/OpenSora-STDiT-v3", qk_norm=True)
vae = dict(type="OpenSoraVAE_V1_2", from_pretrained="vae", micro_frame_size=17, micro_batch_size=4)
text_encoder = dict(type="t5", from_pretrained="t5", model_max_length=300, local_files_only=True)
scheduler = dict(type="rflow", use_timestep_transform=True, num_sampling_steps=30, cfg_scale=7.0)
aes = 6.5
flow = None
"""


def test_an_inference_config_fills_the_sample_section(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    config = load(tmp_path / "sample.py")
    sample = config.sample
    assert (sample.resolution, sample.aspect_ratio, sample.num_frames) == ("240p", "9:16", 51)
    assert (sample.fps, sample.seed, sample.batch_size, sample.align) == (24.0, 42, 1, 5)
    assert (sample.aes, sample.flow, sample.prompts) == (6.5, None, "./assets/texts/t2v_sora.txt")
    assert config.scheduler.num_sampling_steps == 30
    assert any("save_dir is not needed here" in note for note in config.notes)
    again = load(tmp_path / "sample.py", ["--sample.seed", "7", "--sample.num-frames", "102"])
    assert (again.sample.seed, again.sample.num_frames) == (7, 102)


def test_prompts_in_a_config_are_refused_with_the_way_to_give_them(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text('num_frames = 34\nprompt = ["a beach"]')
    with pytest.raises(ConfigError, match=r"sample\.py:2: a config holds no prompts") as caught:
        load(tmp_path / "sample.py")
    assert "--prompt-path" in str(caught.value.hint)


def test_a_training_config_does_not_take_such_keys(bump: Path) -> None:
    bump.write_text(BUMP + "resolution = '240p'\n")
    with pytest.raises(ConfigError, match="bucket_config names the resolutions"):
        load(bump)
