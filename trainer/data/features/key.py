"""What features were made with: weights by their hash, and every setting that changes a number."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config.load import Config
from trainer.data.features.files import FeaturesError
from trainer.errors import CheckpointError
from trainer.runlog.atomic_file import sha256_of
from trainer.runlog.json_file import read_object
from trainer.weights.hub import HUB_ID, download
from trainer.weights.source import find_source

# What a T5 folder is read from; .bin only where there is no safetensors.
_TEXT_FILES = ("config.json", "tokenizer*", "special_tokens_map.json", "spiece.model")
_WORDS = {"vae": "VAE", "text": "text encoder"}
# Parts of a key as keys of a config.
_SECTIONS = {"vae": "vae", "text": "text_encoder", "frames": "dataset"}


@dataclass
class Hashes:
    """SHA-256 of weight files; those whose size and time have not changed are not read again. A T5
    has up to 19 GB: `lives` is called while one is read on."""

    known: Mapping[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    lives: Callable[[], None] = lambda: None

    def of(self, files: Sequence[Path]) -> str | None:
        """One hash of all files and their order; None for no files."""
        if not files:
            return None
        whole = hashlib.sha256()
        for path in files:
            facts = path.stat()
            name = str(path.resolve())
            entry = self.known.get(name)
            if not entry or [facts.st_size, facts.st_mtime_ns] != entry[:2]:
                entry = [facts.st_size, facts.st_mtime_ns, sha256_of(path, lives=self.lives)]
            self.seen[name] = list(entry)
            whole.update(str(entry[2]).encode())
        return whole.hexdigest()


def key_of(config: Config, text_folder: Path | None, hashes: Hashes) -> dict[str, Any]:
    """The key of a config's features, but for `latents`. `text_folder` is that of a tiny_t5, which
    no config names. The hash of weights that are not on this machine is None."""
    vae, text, data = config.vae, config.text_encoder, config.dataset
    own: dict[str, Any] = {"type": vae.type}
    if vae.type == "identity":
        own["channels"] = vae.channels
    else:
        place = _local(vae.from_pretrained)
        source = find_source(place) if place is not None else None
        files = [*sorted(source.files), *source.path.glob("config.json")] if source else []
        own |= {"from_pretrained": vae.from_pretrained, "weights": hashes.of(files)}
        own |= {name: getattr(vae, name) for name in ("micro_frame_size", "scale", "shift")}
    words: dict[str, Any] = {"type": text.type, "model_max_length": text.model_max_length}
    if text.type == "tiny_t5":
        settings = ("d_model", "num_layers", "initializer_factor")
        words |= {name: getattr(text, name) for name in settings}
    else:
        words["from_pretrained"] = text.from_pretrained
        text_folder = _local(text.from_pretrained)
    words["weights"] = hashes.of(_text_files(text_folder))
    frames = {name: getattr(data, name) for name in ("frame_interval", "resize", "transform_name")}
    key = {"vae": own, "text": words, "dtype": config.dtype, "frames": frames}
    return json.loads(json.dumps(key))  # as it is read from a cache: lists, not tuples


def difference(cache: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """The first thing that a cache and a run do not share, as words; None when they agree."""
    if cache["dtype"] != run["dtype"]:
        return f"dtype {cache['dtype']}, this run has {run['dtype']}"
    for part in ("vae", "text", "frames"):
        before, now = cache[part], run[part]
        for name in dict.fromkeys([*before, *now]):
            was, has = before.get(name), now.get(name)
            if name == "from_pretrained" or was == has:
                continue  # the same weights may lie elsewhere
            if name != "weights":
                return f"{_SECTIONS[part]}.{name} {was}, this run has {has}"
            if has is not None:
                where = now.get("from_pretrained") or "its own"
                return (
                    f"other weights of the {_WORDS[part]} ({str(was)[:12]}; those of this run, "
                    f"{where}, are {has[:12]})"
                )
            if before.get("from_pretrained") != now.get("from_pretrained"):
                return (
                    f"the {_WORDS[part]} {before.get('from_pretrained')}, this run has "
                    f"{now.get('from_pretrained')}, which is not on this machine to be compared"
                )
    return None


def unseen(cache: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Weights that could be compared by their name only, for people."""
    return [
        f"the weights of the {_WORDS[part]} ({run[part]['from_pretrained']}) are not on this "
        "machine: they were compared with those of the features by name only"
        for part in ("vae", "text")
        if cache[part].get("weights") and "from_pretrained" in run[part]
        if run[part].get("weights") is None
    ]


def refuse_other(folder: Path, cache: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Raise FeaturesError when features of one key cannot serve a run of another."""
    if different := difference(cache, run):
        raise FeaturesError(
            f"the features in {folder} were made with {different}",
            hint="python -m trainer.data encode CONFIG OTHER-FOLDER --data-path MANIFEST makes "
            "those of this config; or set the config as the features were made",
        )


def encoder_width(place: str | None) -> int:
    """Channels of a T5's features, from its config.json. Raises FeaturesError when it is absent."""
    folder = _local(place)
    try:
        return int(read_object(folder / "config.json")["d_model"]) if folder else 0
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise FeaturesError(f"{place} is not a folder of a T5 encoder: {error}") from None


def _text_files(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    found = {path for pattern in _TEXT_FILES for path in folder.glob(pattern)}
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    return [*sorted(found), *weights]


def _local(place: str | None) -> Path | None:
    """The path itself, or a hub id's copy on this machine; nothing is downloaded."""
    if place is None:
        return None
    path = Path(os.path.expanduser(place))  # noqa: PTH111 - Path's own raises for ~nobody
    if path.exists():
        return path
    try:
        return download(place, local_files_only=True) if HUB_ID.fullmatch(place) else None
    except CheckpointError:
        return None
