"""Published config files as they are: what their names, values and sections are called here.

So files of Open-Sora 1.2 and 2.0 and of Lambda's fork load unchanged. An inference config's flat
keys become the section `sample`; it has no bucket_config and a key that only such files have.
"""

from __future__ import annotations

from typing import Any

from trainer.config.build import field_types
from trainer.config.file import Tree
from trainer.config.keys import Config, DatasetConfig, ModelConfig, SampleConfig
from trainer.errors import ConfigError, nearest

_OTHER_NETWORK = "is another network; STDiT3 of Open-Sora 1.2 is trained here"
_FEATURES = "reads its own feature files; ours of trainer.data encode are named by dataset.features"
_IDDPM = "is another diffusion; rectified flow ('rflow') is trained here"

# Section -> name in a file -> our name.
TYPES: dict[str, dict[str, str]] = {
    "dataset": {
        "VariableVideoTextDataset": "VariableVideoTextDataset",
        "video_text": "VariableVideoTextDataset",  # Open-Sora 2's word
    },
    "model": {"STDiT3": "STDiT3", "STDiT3-XL/2": "STDiT3-XL/2", "STDiT3-3B/2": "STDiT3-3B/2"},
    "vae": {
        "OpenSoraVAE_V1_2": "OpenSoraVAE_V1_2",
        "VideoAutoencoderPipeline": "OpenSoraVAE_V1_2",  # what the first one builds
        "identity": "identity",
    },
    "text_encoder": {"t5": "t5", "tiny_t5": "tiny_t5"},
    "scheduler": {"rflow": "rflow"},
}

# Section -> name in a file -> why it is refused.
REFUSED: dict[str, dict[str, str]] = {
    "dataset": {
        "VideoTextDataset": "has one fixed size; name a size in bucket_config instead",
        "BatchFeatureDataset": _FEATURES,
        "text": "has captions alone, for sampling: trainer.infer --prompt-path FILE",
        "cached_video_text": _FEATURES,
    },
    "model": {
        "STDiT-XL/2": _OTHER_NETWORK,
        "STDiT2-XL/2": _OTHER_NETWORK,
        "PixArt-XL/2": "makes images; STDiT3 starts from its weights (--ckpt-path)",
        "PixArt-1B/2": "makes images; STDiT3 starts from its weights (--ckpt-path)",
        "DiT-XL/2": _OTHER_NETWORK,
        "Latte-XL/2": _OTHER_NETWORK,
        "flux": _OTHER_NETWORK,
    },
    "vae": {
        "VideoAutoencoderKL": "has no time axis; the video VAE is OpenSoraVAE_V1_2",
        "VideoAutoencoderKLTemporalDecoder": "is another VAE; there is OpenSoraVAE_V1_2",
        "OpenSoraVAE_V1_3": "is Open-Sora 1.3's; there is OpenSoraVAE_V1_2",
        "hunyuan_vae": "is Open-Sora 2's; there is OpenSoraVAE_V1_2",
        "dc_ae": "is Open-Sora 2's; there is OpenSoraVAE_V1_2",
    },
    "text_encoder": {
        "clip": "does not fit STDiT3's 4096 channels; there is t5",
        "classes": "knows classes, not captions; there is t5",
        "text_embedder": "is Open-Sora 2's; there is t5",
    },
    "scheduler": {"iddpm": _IDDPM, "iddpm-speed": _IDDPM, "dpm-solver": _IDDPM},
}

_GRAD_CHECKPOINT = {"off": False, "none": False, "all": True}
_MARKS = ("num_frames", "image_size", "save_fps", "prompt_path", "prompt", "multi_resolution")
# Keys of sample files -> why they need nothing.
_LEFT_OUT = {
    "save_dir": "--save-dir says where videos go",
    "multi_resolution": "the model always gets the size",
    "prompt_as_path": "--prompt-as-path says it",
    "sample_name": "--sample-name says it",
}

# Keys that a file of ours or of upstream may set at its top.
KNOWN = frozenset(
    name
    for section in (Config, SampleConfig)
    for names in (field_types(section), section.aliases, section.harmless, section.refused)
    for name in names
) | {*_MARKS, *_LEFT_OUT}


def translate(tree: Tree, notes: list[str]) -> None:
    """Rewrite a tree in our names; `notes` gets what a user should know. Raises ConfigError."""
    data = tree.data
    if "bucket_config" not in data and any(name in data for name in _MARKS):
        _move_into_sample(tree, notes)
    _drop_nothing(data, Config)
    _drop_nothing(data.get("model"), ModelConfig)
    _drop_nothing(data.get("dataset"), DatasetConfig)
    if isinstance(data.get("wandb"), bool):
        data["wandb"] = "online" if data["wandb"] else "off"
    for name in ("vae", "text_encoder"):
        if name in data and data[name] is None:
            raise ConfigError(
                f"{tree.place((name,))}: {name} = None means cached features; name theirs by "
                f"dataset.features = FOLDER and leave {name} as they were made with"
            )
    if isinstance(word := data.get("grad_checkpoint"), str):
        data["grad_checkpoint"] = _GRAD_CHECKPOINT.get(word, word)
    times = data.get("scheduler")
    if isinstance(times, dict) and times.get("timestep_transform") == "latent":  # its older name
        times["timestep_transform"] = "true-length"
    for section in TYPES:
        own = data.get(section)
        if isinstance(own, dict) and isinstance(own.get("type"), str):
            ours = our_type(section, own["type"], tree.place((section, "type")))
            if ours != own["type"]:
                notes.append(f"{section}.type {own['type']} is {ours} here")
                own["type"] = ours
    for name, target in Config.aliases.items():
        if "." in target and name in data:
            tree.set(tuple(target.split(".")), data.pop(name), tree.place((name,)))


def _drop_nothing(
    data: Any, section: type[Config] | type[ModelConfig] | type[DatasetConfig]
) -> None:
    """Refused keys whose value asks for nothing."""
    for name in list(data) if isinstance(data, dict) else ():
        if data[name] in section.nothing.get(name, ()):
            del data[name]


def our_type(section: str, name: str, place: str) -> str:
    """Our name of a file's `section.type`. Raises ConfigError with the reason or nearest name."""
    known, refused = TYPES[section], REFUSED[section]
    if name in known:
        return known[name]
    if name in refused:
        raise ConfigError(f"{place}: {section}.type {name!r} {refused[name]}")
    text = f"{place}: {section}.type {name!r} is not known; there is {', '.join(known)}"
    raise ConfigError(text, hint=nearest(name, [*known, *refused]))


def _move_into_sample(tree: Tree, notes: list[str]) -> None:
    """Put the flat keys of an inference config into `sample`."""
    if tree.data.pop("prompt", None):
        hint = "--prompt TEXT, or a file with one a line and --prompt-path FILE"
        raise ConfigError(f"{tree.place(('prompt',))}: a config holds no prompts", hint=hint)
    for name, why in _LEFT_OUT.items():
        if tree.data.pop(name, None) is not None:
            notes.append(f"{name} is not needed here: {why}")
    section = tree.data.get("sample")
    own = set(section) if isinstance(section, dict) else set()
    for name in ["prompt_path", *field_types(SampleConfig)]:
        target = SampleConfig.aliases.get(name, name)
        if name in tree.data:
            value = tree.data.pop(name)
            if target not in own:  # `--sample.seed 1` goes before the file's seed
                tree.set(("sample", target), value, tree.place((name,)))
