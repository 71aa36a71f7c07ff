"""The `type = "..."` names of published config files: what each is here, or why it is not.

One table for all sections, so that a file of Open-Sora or of Lambda's fork loads as it stands.
"""

from __future__ import annotations

import difflib

from trainer.errors import ConfigError

_OTHER_NETWORK = "is another network; STDiT3 of Open-Sora 1.2 is trained here"
_FEATURES = (
    "reads its own files of features; ours are made by trainer.data encode and named by "
    "dataset.features"
)
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


def our_type(section: str, name: str, place: str) -> str:
    """Our name of a file's `section.type`. Raises ConfigError with the reason or nearest name."""
    known, refused = TYPES[section], REFUSED.get(section, {})
    if name in known:
        return known[name]
    if name in refused:
        raise ConfigError(f"{place}: {section}.type {name!r} {refused[name]}")
    near = difflib.get_close_matches(name, [*known, *refused], n=1)
    raise ConfigError(
        f"{place}: {section}.type {name!r} is not known; there is {', '.join(known)}",
        hint=f"did you mean {near[0]}?" if near else None,
    )
