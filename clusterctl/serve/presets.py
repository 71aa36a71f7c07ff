"""Presets: how videos of a checkpoint are made. Built-in ones, those of a file, the run's own."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.defaults import parse_toml
from clusterctl.errors import UsageError
from clusterctl.payload.files.ownership import changed_by_others
from trainer.runlog.run_files import read_open

RUN = "run"  # the run's own `sample` section
FILE = Path("presets.toml")
MAX_BYTES = 1 << 20
# Keys of the trainer's SampleConfig (a test compares them) and what they may be.
NUMBER, TEXT, SIZE = (int, float), (str,), (list,)
SAMPLE: dict[str, tuple[type, ...]] = {
    "num_frames": (int, str),  # 51, or 4s
    "image_size": SIZE,
    "resolution": TEXT,
    "aspect_ratio": TEXT,
    "fps": NUMBER,
    "frame_interval": (int,),
    "save_fps": NUMBER,
    "num_sampling_steps": (int,),
    "cfg_scale": NUMBER,
    "negative_prompt": TEXT,
    "aes": NUMBER,
    "flow": NUMBER,
    "camera_motion": TEXT,
    "num_sample": (int,),
    "loop": (int,),
    "condition_frame_length": (int,),
    "condition_frame_edit": NUMBER,
    "align": (int,),
    "batch_size": (int,),
    "seed": (int,),
}
OTHERS: dict[str, tuple[type, ...]] = {"prompts": TEXT, "upscale": (int,)}


@dataclass(frozen=True, slots=True)
class Preset:
    """`sample` are keys of the trainer's sample section; those of RUN lie on top of the run's."""

    name: str
    sample: Mapping[str, Any] = field(default_factory=dict)
    prompts: Path | None = None
    upscale: int | None = None

    @property
    def own(self) -> bool:
        return self.name == RUN


LOSS = Preset("validation")  # in the place of a preset: the validation loss, no videos


def _upstream(seconds: int, resolution: str, batch_size: int) -> dict[str, Any]:
    """The settings of Open-Sora's inference server (scripts/inference-server.py, sample.py)."""
    how = {"num_sampling_steps": 30, "cfg_scale": 7.0, "aes": 6.5, "fps": 24.0}
    size = {"num_frames": f"{seconds}s", "resolution": resolution, "aspect_ratio": "9:16"}
    return {**size, **how, "batch_size": batch_size}


BUILT_IN = {
    "low4s": Preset("low4s", _upstream(4, "360p", 8)),
    "high4s": Preset("high4s", _upstream(4, "720p", 2)),
    "low16s": Preset("low16s", _upstream(16, "360p", 2)),
    RUN: Preset(RUN),
}


def read_presets(path: Path | None) -> dict[str, Preset]:
    """The built-in ones and those of a file, by default presets.toml where it exists.

    Raises `UsageError` for a file that cannot be read, an unknown key and a wrong value.
    """
    found = dict(BUILT_IN)
    is_own_choice = path is not None
    if path is None and not FILE.exists():
        return found
    path = path or FILE
    try:
        # A pipe of another user's would let us wait.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            why = changed_by_others(status)
            if not why and not stat.S_ISREG(status.st_mode):
                why = "is no plain file"
            if why and not is_own_choice:  # its prompts name files; their lines become captions
                hint = "--presets FILE names one that you trust"
                raise UsageError(f"{path.absolute()} {why}, so it is not used", hint=hint)
            data = read_open(file.fileno(), path, MAX_BYTES)  # --presets may name a pipe
        tables = parse_toml(data.decode())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # no UTF-8, or no TOML
        raise UsageError(f"{path} is not TOML: {error}") from None
    for name, table in tables.items():
        if name == LOSS.name:
            raise UsageError(f"{path}: no preset can be called {name}: --validate writes there")
        found[name] = _preset(path, name, table)
    return found


def _preset(path: Path, name: str, table: Any) -> Preset:
    where = f"{path}: [{name}]"
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} is not in a table", hint="begin it with [my-preset]")
    if name in BUILT_IN or not name or name[0] == "." or "/" in name or not name.isprintable():
        why = "is built in" if name in BUILT_IN else "cannot be the name of a folder"
        raise UsageError(f"{where} {why}", hint="give it another name")
    known = {**SAMPLE, **OTHERS}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"keys: {', '.join(known)}"
            raise UsageError(f"{where} has no key {key}", hint=hint)
        if isinstance(value, bool) or not isinstance(value, known[key]):
            wanted = " or ".join(kind.__name__ for kind in known[key])
            raise UsageError(f"{where} {key} = {value!r} is not of type {wanted}")
        if key == "image_size" and not _is_size(value):
            raise UsageError(f"{where} {key} = {value!r} is not [height, width] in pixels")
    sample = {key: value for key, value in table.items() if key in SAMPLE}
    prompts = table.get("prompts")
    # Path's own raises for ~nobody.
    place = None if prompts is None else path.parent / os.path.expanduser(prompts)  # noqa: PTH111
    upscale = table.get("upscale")
    if upscale is not None and upscale < 1:
        raise UsageError(f"{where} upscale = {upscale} is not a whole number from 1 on")
    return Preset(name, sample, place, upscale)


def _is_size(value: Any) -> bool:
    return len(value) == 2 and all(isinstance(side, int) and side > 0 for side in value)


def find_preset(name: str, known: Mapping[str, Preset]) -> Preset:
    """Raises `UsageError` with the nearest name."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"there is no preset {name}", hint=hint)


def default_preset(config: Mapping[str, Any]) -> str:
    """RUN where the run's config says how large and how long its videos are, else low4s."""
    sample = config.get("sample")
    sample = sample if isinstance(sample, dict) else {}
    has_size = sample.get("image_size") is not None or sample.get("resolution") is not None
    return RUN if has_size and sample.get("num_frames") is not None else "low4s"
