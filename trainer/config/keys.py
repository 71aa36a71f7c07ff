"""Every key of a training config: a dataclass field with its default and the reason.

Names are those of Open-Sora 1.2 and 2.0 configs, so that the published stage files load. Keys of
theirs that change nothing here are `harmless`, keys that cannot be honoured are `refused` with a
sentence. docs/reference/configs.md is made from this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainer.allowed_values import choice, number
from trainer.config.build import Section
from trainer.models.stdit_config import STDiT3Config

_FEATURE_KEYS = ("load_video_features", "load_text_features", "cached_video", "cached_text")
_FEATURES = "make features with trainer.data encode and say dataset.features = FOLDER"
_ATTENTION = "there is one attention and one norm path, chosen by torch"


@dataclass(frozen=True)
class DatasetConfig(Section):
    """Which clips, and how a clip becomes a tensor."""

    type: str = "VariableVideoTextDataset"  # upstream's name for bucketed clips with captions
    data_path: str | None = None  # manifest, csv or parquet
    transform_name: str = "resize_crop"  # scale to cover the bucket's size, crop the centre
    frame_interval: int = number(1, least=1)  # every n-th frame
    # of a window with frame_interval above 1; "even": every n-th, "upstream": spread to its end
    frame_spacing: str = choice("upstream", "even")
    # what the model is told; "upstream": the file's rate / frame_interval, rounded down, "exact":
    # the manifest's rate, else the file's, not rounded
    fps_condition: str = choice("upstream", "exact")
    features: str | None = None  # cache made by trainer.data encode: no VAE, no text encoder
    memory_efficient: bool = False  # captions and paths stay on disk, in a manifest's shards
    max_wrong_rows: int = number(100, least=0)  # of the manifest, left out before the run stops
    root: str | None = None  # folder that relative paths start from; default the manifest's
    # "area": sharper; "torch": upstream's pixels, see docs/explanations/reading-clips.md
    resize: str = choice("bilinear", "area", "torch")
    clip_timeout_s: float = number(30.0, above=0)  # a clip that takes longer is bad
    batch_timeout_s: float = number(300.0, above=0)  # a batch that takes longer stops the run
    worker_memory_mb: int = number(2048, least=1)  # per process; a clip that needs more is bad
    cache_decoded_mb: int = number(0, least=0)  # of clips that a worker keeps, for small data sets
    balance_window: int = number(8, least=0)  # steps with microbatches grouped by cost; 0 is off
    balance_costs: str = choice("flops", "timed")  # "timed": three forward passes a bucket

    aliases: ClassVar[Mapping[str, str]] = {"sampling_interval": "frame_interval"}
    harmless: ClassVar[Mapping[str, str]] = {
        "num_frames": "buckets state the length",
        "image_size": "buckets state the size",
    }
    refused: ClassVar[Mapping[str, str]] = {
        "tokenize_fn": "the text encoder tokenises captions",
        "fps_max": "faster clips are not thinned, and captions get no rate; leave them out by "
        "`trainer.data filter --where 'fps <= 24'`, or say frame_interval",
        "vmaf": "captions get no motion score; write it into them before training",
    }
    nothing: ClassVar[Mapping[str, tuple[Any, ...]]] = {"fps_max": (None,), "vmaf": (None, False)}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Which network. Keys beyond these are fields of the model's own dataclass."""

    type: str = "STDiT3-XL/2"  # STDiT3 with its own numbers, or a named size of it
    from_pretrained: str | None = None  # file, folder, checkpoint or hub id; --ckpt-path sets it
    allow_partial: bool = False  # start although the weights give less than 99 % of the tensors
    options: dict[str, Any] = field(default_factory=dict, metadata={"settable": False})

    harmless: ClassVar[Mapping[str, str]] = {"force_huggingface": "the weights say what they are"}
    refused: ClassVar[Mapping[str, str]] = {
        "qk_norm_legacy": "norms stand before the rotation, as in the published weights",
        "grad_ckpt_setting": "say grad_checkpoint, for a memory budget too",
        "grad_ckpt_settings": "say grad_checkpoint, for a memory budget too",
    }
    nothing: ClassVar[Mapping[str, tuple[Any, ...]]] = {"qk_norm_legacy": (False,)}
    further: ClassVar[Any] = STDiT3Config


@dataclass(frozen=True)
class VaeConfig(Section):
    """How pixels become latents."""

    type: str = "OpenSoraVAE_V1_2"  # or "identity": pixels are the latents
    from_pretrained: str | None = None  # weights: a file, a folder or a hub id
    channels: int = 3  # identity only: 3, or 1 for luma
    micro_frame_size: int | None = number(17, least=1)  # frames of a chunk, which sees no other
    memory_gb: float | None = number(None, above=0)  # default 1/8 of the accelerator's
    scale: tuple[float, ...] | None = number(None, above=0)  # divides latents, per channel
    shift: tuple[float, ...] | None = None  # subtracted from latents before

    harmless: ClassVar[Mapping[str, str]] = {
        "micro_batch_size": "memory decides how many frames go through at once; see vae.memory_gb",
        "vae_2d": "the weights say what they are",
        "vae_temporal": "the weights say what they are",
        "force_huggingface": "weights come from a file or folder",
        "local_files_only": "nothing is downloaded while training",
        "freeze_vae_2d": "the VAE is not trained here",
        "cal_loss": "the VAE is not trained here",
    }


@dataclass(frozen=True)
class TextEncoderConfig(Section):
    """How captions become vectors."""

    type: str = "t5"  # or "tiny_t5": built offline from the dataset's captions into the run
    from_pretrained: str | None = None  # folder with tokenizer and weights
    model_max_length: int = number(300, least=1)  # tokens; longer captions are cut
    d_model: int = number(128, least=1)  # tiny_t5 only: width of its output
    num_layers: int = number(2, least=1)  # tiny_t5 only
    initializer_factor: float = number(1.0, above=0)  # tiny_t5 only: small keeps words apart

    harmless: ClassVar[Mapping[str, str]] = {
        "shardformer": "T5 runs as it is",
        "local_files_only": "nothing is downloaded while training",
        "cache_dir": "nothing is downloaded while training",
    }


@dataclass(frozen=True)
class SchedulerConfig(Section):
    """Rectified flow: how time is drawn in training, how it is walked in sampling."""

    type: str = "rflow"  # rectified flow, the only one
    num_timesteps: int = number(1000, least=1)  # t runs from 0 (clean) to this (noise)
    num_sampling_steps: int = number(30, least=1)  # from noise to a latent
    cfg_scale: float = 7.0  # guidance while sampling
    use_discrete_timesteps: bool = False  # whole numbers only
    sample_method: str = choice("uniform", "logit-normal")  # of the times trained on
    loc: float = 0.0  # of logit-normal
    scale: float = number(1.0, above=0)  # of logit-normal
    use_timestep_transform: bool = False  # more noise for larger and longer clips
    transform_scale: float = number(1.0, above=0)  # factor on how much more
    timestep_transform: str = choice("true-length", "upstream")  # upstream: 0 for 2 to 16 frames


@dataclass(frozen=True)
class SampleConfig(Section):
    """Videos made from prompts: size, length and how."""

    prompts: str | None = None  # file, one prompt a line
    num_frames: int | None = number(None, least=1)  # of a video; 1 is an image
    image_size: tuple[int, int] | None = number(None, least=1)  # height, width in pixels
    resolution: str | None = None  # or an area by name ...
    aspect_ratio: str | None = None  # ... at a ratio height:width
    fps: float = number(24.0, above=0)  # given to the model
    frame_interval: int = number(1, least=1)  # of the videos trained on
    save_fps: float | None = number(None, above=0)  # of the file; default fps / frame_interval
    num_sampling_steps: int | None = number(None, least=1)  # default scheduler.num_sampling_steps
    cfg_scale: float | None = number(None)  # default scheduler.cfg_scale
    negative_prompt: str | None = None  # steered away from; default the learned null text
    aes: float | None = number(None)  # scores appended to prompts that state none
    flow: float | None = number(None)  # motion score
    camera_motion: str | None = None  # in words
    num_sample: int = number(1, least=1)  # videos of each prompt
    loop: int = number(1, least=1)  # clips joined to one video, each continuing the one before
    condition_frame_length: int = number(5, least=1)  # latent frames that the next clip continues
    condition_frame_edit: float = number(0.0, least=0, most=1)  # how far those may change
    # conditions start at multiples of it; default the VAE's chunk
    align: int | None = number(None, least=1)
    batch_size: int = number(8, least=1)  # videos at once; does not change the result
    seed: int = 1024  # of the noise; every video has its own

    aliases: ClassVar[Mapping[str, str]] = {"prompt_path": "prompts"}


@dataclass(frozen=True)
class ValidationConfig(Section):
    """Loss of clips that are never trained on."""

    data_path: str | None = None  # a manifest of clips that the training data do not have
    # or of the training data's clips, kept for it by a hash of their paths: the same in every run
    share: float = number(0.0, least=0, most=0.5)
    every: int = number(0, least=0)  # steps between two measurements in the run; 0 is none
    clips: int = number(64, least=1)  # of each bucket, at most
    # each clip at so many times, the middles of equal bands from 0 to scheduler.num_timesteps
    times: int = number(4, least=1)
    ema: bool = True  # also with the averaged weights


@dataclass(frozen=True)
class Config(Section):
    """A training run."""

    # data
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    # resolution -> {frames: (p, batch)}
    bucket_config: dict[str, Any] = field(default_factory=dict)
    bucket_semantics: str = choice("open-sora-1.2", "open-sora-2")  # meaning of the probabilities
    num_workers: int = number(4, least=0)  # decoding processes per rank; 0: one beside it
    prefetch_factor: int | None = number(None, least=1)  # batches ahead per worker; default 2
    max_bad_samples: int = number(1000, least=0)  # clips that may fail before the run stops

    # model
    model: ModelConfig = field(default_factory=ModelConfig)
    vae: VaeConfig = field(default_factory=VaeConfig)
    text_encoder: TextEncoderConfig = field(default_factory=TextEncoderConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    mask_ratios: dict[str, float] | None = None  # shares of clips with given frames, by kind
    accumulation_steps: int = number(1, least=1)  # microbatches of a rank per optimizer step
    # recompute: auto, off, all, every 2, or keep "24000 MB"
    grad_checkpoint: bool | int | str = False
    offload_activations: bool = False  # what the backward pass keeps waits in host memory
    fused_blocks: bool = True  # our kernels between a block's products: on GPUs, in bf16
    # the blocks' large products in fp8; on GPUs from compute capability 8.9, on a CPU simulated
    fp8_linears: bool = False
    compile: bool = False  # torch.compile of each block where our kernels are not
    positions: str = choice("fp32-exact", "bf16-compat")  # bf16-compat: as in Open-Sora's runs
    deterministic: bool = False  # the same bits in every run on a GPU; slower backward passes
    attention_table: str | None = None  # kernels by shape, made by trainer.bench attention --write
    dtype: str = choice("bf16", "fp32")  # fp32 master weights either way

    # optimisation
    lr: float = number(1e-4, least=0)  # after the warmup; where 1cycle ends
    weight_decay: float = number(0.0, least=0)  # of AdamW
    adam_eps: float = number(1e-8, above=0)  # of AdamW
    adam_betas: tuple[float, float] = number((0.9, 0.999), least=0, below=1)  # of AdamW
    grad_clip: float = number(0.0, least=0)  # largest gradient norm; 0 is no clipping
    warmup_steps: int | None = number(None, least=0)  # linear from 0; None is a constant rate
    # "1cycle" or "cosine"; None is linear warmup, then constant
    lr_schedule: str | None = choice(None, "linear", "1cycle", "cosine")
    min_lr: float = number(0.0, least=0)  # 1cycle starts here, cosine ends here
    max_lr: float | None = number(None, least=0)  # 1cycle's peak
    cooldown_steps: int | None = number(None, least=0)  # 1cycle: from the peak down to lr
    anneal_strategy: str = choice("cos", "linear")  # 1cycle's shape
    guard_skip: bool = True  # a gradient norm that is not finite, or above guard_z, skips the step
    # deviations above the median of 200 steps, of the norm's logarithm
    guard_z: float = number(10.0, above=0)
    # a loss or norm that stays high for 50 steps: back to a checkpoint before, without those data
    guard_rollback: bool = True
    ema_decay: float = number(0.9999, least=0, below=1)  # per step
    ema_warmup: bool = False  # decay grows as (1 + n) / (10 + n) first, for short runs
    epochs: int = number(1000, least=1)  # passes over the data; max_steps may end the run before
    max_steps: int | None = number(None, least=1)  # stop after this many optimizer steps

    # the run
    # of fresh weights, the data's order, times and noise
    seed: int = number(1024, least=0, most=2**32 - 1)
    outputs: str = "outputs"  # run directories are made here
    ckpt_every: int = number(0, least=0)  # steps between checkpoints; 0 is only at the end
    ckpt_at_epoch_end: bool = False  # also save after the last step of each epoch
    keep_checkpoints: int = number(-1, least=-1)  # newest ones to keep; -1 is all
    keep_every: int = number(0, least=0)  # beside them, those of every n-th step; 0 is none
    # training goes on for so long while saves fail; with 0 the first that fails ends the run
    ckpt_retry_hours: float = number(24.0, least=0)
    async_io: bool = True  # training continues while a checkpoint is written from a copy in memory
    # steps between lines, and, at least 10, between update ratios and EMA gaps
    log_every: int = number(1, least=1)
    load: str | None = None  # checkpoint to resume from
    start_from_scratch: bool = False  # with load: not the position in the data
    start_epoch: int | None = number(None, least=0)  # of the data, instead of the checkpoint's
    start_step: int | None = number(None, least=0)  # of that epoch, first is 0
    wandb: str = choice("off", "offline", "online")  # Weights & Biases
    wandb_project: str = "clusterctl"  # where trackers put the run
    tensorboard: bool = False  # event files in the run directory, too
    exp_name: str | None = None  # name of the run in trackers; default the run directory's
    sample: SampleConfig = field(default_factory=SampleConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    # the machine
    engine: str = choice("colossal", "native")  # library that spreads a step over ranks
    plugin: str = choice("zero2", "zero1", "ddp")  # what ranks share of the state
    reduce_bucket_size_in_m: int = number(20, least=1)  # million gradient elements per collective
    # per rank; default OMP_NUM_THREADS, else 1 where ranks share a CPU
    threads: int | None = number(None, least=1)
    process_group_timeout_s: float = number(600.0, above=0)  # limit of a collective

    notes: tuple[str, ...] = field(default=(), metadata={"settable": False})  # for the log

    def is_logged(self, step: int) -> bool:
        """Whether a step has a line in the log."""
        return step == 1 or step % self.log_every == 0

    def is_measured(self, step: int) -> bool:
        """Whether a step has the figures that read all weights once more: 5 % of a small step."""
        return step == 1 or step % max(self.log_every, 10) == 0

    aliases: ClassVar[Mapping[str, str]] = {
        "keep_n_latest": "keep_checkpoints",
        "data_path": "dataset.data_path",
        "ckpt_path": "model.from_pretrained",
        "allow_partial": "model.allow_partial",
        "grad_ckpt": "grad_checkpoint",
    }
    harmless: ClassVar[Mapping[str, str]] = {
        "num_bucket_build_workers": "buckets are assigned vectorised in one process",
        "record_time": "every step's phases are always recorded",
        "record_barrier": "timing needs no barriers",
        "pin_memory_cache_pre_alloc_numels": "torch manages pinned memory",
        "flash_attn": _ATTENTION,
        "layernorm_kernel": _ATTENTION,
        "enable_flash_attn": _ATTENTION,
        "enable_layernorm_kernel": _ATTENTION,
        "verbose": "the log says what is done",
        "text_encoder_output_dim": "the text encoder says its width",
        "text_encoder_model_max_length": "text_encoder.model_max_length says it",
        "vae_out_channels": "the VAE says its channels",
        "debug": "the log says what is done",
    }
    refused: ClassVar[Mapping[str, str]] = {
        "batch_size": "bucket_config holds one batch size per bucket",
        "optim": "the optimizer is AdamW; its keys are lr, adam_eps, adam_betas, weight_decay",
        "lora_config": "there is no LoRA training",
        "lora_checkpoint": "there is no LoRA training",
        **dict.fromkeys(_FEATURE_KEYS, _FEATURES),
        "sp_size": "there is no sequence parallelism",
        "plugin_config": "the engines take no free arguments",
        "use_cosine_scheduler": 'say lr_schedule = "cosine"',
        "condition_config": "image and video conditions are not built yet",
        "discriminator": "adversarial training is not built",
        "resolution": "bucket_config names the resolutions",
        "grad_ckpt_setting": "say grad_checkpoint, for a memory budget too",
        "grad_ckpt_settings": "say grad_checkpoint, for a memory budget too",
        "grad_ckpt_buffer_size": "say offload_activations = True",
    }
    # Values of refused keys that ask for nothing, as the published files write them.
    nothing: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "batch_size": (None,),
        **dict.fromkeys(_FEATURE_KEYS, (False,)),
        "sp_size": (1,),
        "lora_config": (None,),
        "grad_ckpt_buffer_size": (0,),
    }
