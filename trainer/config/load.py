"""A run's configuration from a file and the command line; keys are in trainer.config.keys.

    config = load("demo", ["--lr", "1e-4", "--dataset.data-path=clips.csv"])

Files of Open-Sora and of Lambda's fork load unchanged, and each key and value is checked before
anything starts; mmengine's Config takes any key, so that a rank fails later
(docs/decisions/0008-configuration-in-python.md).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config.build import build, coerce, parse_text, type_at
from trainer.config.file import CONFIGS, OWN_PROGRAM, Tree, is_whole, read, short
from trainer.config.keys import Config as Config  # others import it from here
from trainer.config.upstream import KNOWN, translate
from trainer.errors import ConfigError, nearest
from trainer.models.activation_checkpointing import GradCheckpoint
from trainer.optim.lr_schedules import rate_of
from trainer.runlog.checkpoint_name import IN_TEXT
from trainer.runlog.json_file import read_object

RUN_CONFIG = "config.json"  # of a run directory


def find(name: str | Path) -> Path:
    """The file of a path, a short name (`demo`) or a run directory. Raises `ConfigError`."""
    path = Path(name)
    if (ours := short(name)) is not None:
        return ours
    if path.is_file():
        return path
    if (path / RUN_CONFIG).is_file():
        return path / RUN_CONFIG
    have = sorted(p.stem for p in CONFIGS.glob("[!_]*.py"))
    known = ", ".join(have) or "none"
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    text = f"there is no config {name}{where}; short names are {known}"
    raise ConfigError(text, hint=nearest(name, have) or OWN_PROGRAM)


def load(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a file with command-line overrides laid over it. Raises `ConfigError`.

    `overrides` are words as typed: `--a.b-c VALUE`, `--a.b=VALUE`, `--flag` for a bool field.
    """
    path = find(path_or_name)
    if path.suffix == ".json":
        return _load_run(path, overrides)
    tree = read(path, known=KNOWN)
    notes: list[str] = []
    for flag, value in _pairs(overrides):
        _override(tree, flag, value, notes)
    return _finish(tree, notes)


def _load_run(path: Path, overrides: Sequence[str]) -> Config:
    """Of a run's config.json, which is data: it is never run."""
    if overrides:
        raise ConfigError(f"a run's config.json takes no overrides, here {overrides[0]}")
    try:
        data = read_object(path)
        if not isinstance(config := data.get("config", data), dict):
            raise ValueError("its config is not an object")
        return from_dict(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a run's config: {error}") from None


def from_dict(data: Mapping[str, Any]) -> Config:
    """The config of `to_dict`, as a run directory's config.json keeps it."""
    plain = json.loads(json.dumps(dict(data)))
    plain.pop("notes", None)
    return _finish(Tree(_with_number_keys(plain)), [])


def to_dict(config: Config) -> dict[str, Any]:
    """Plain data, with a model's options beside its type, as a file would hold them."""
    data = dataclasses.asdict(config)
    data["model"].update(data["model"].pop("options"))
    return data


def _finish(tree: Tree, notes: list[str]) -> Config:
    translate(tree, notes)
    config = build(Config, tree, notes)
    try:
        key = "grad_checkpoint"
        GradCheckpoint.parse(config.grad_checkpoint)
        key = "lr_schedule"
        rate_of(config)
    except ConfigError as error:
        raise ConfigError(f"{tree.place((key,))}: {error}") from None
    if config.keep_checkpoints == 0:
        place = tree.place(("keep_checkpoints",))
        raise ConfigError(f"{place}: keep_checkpoints is -1 (all) or at least 1")
    return dataclasses.replace(config, notes=tuple(notes))


def _pairs(args: Sequence[str]) -> list[tuple[str, str | None]]:
    """(flag, value) of a command line's overrides; value None for a flag that stands alone."""
    pairs: list[tuple[str, str | None]] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            text = f"{word!r} is neither a flag nor the value of one"
            more = [word, *itertools.takewhile(lambda one: not one.startswith("--"), rest)]
            if pairs and pairs[-1][1] is not None:
                text = f"{pairs[-1][0]} takes one value, {1 + len(more)} are given"
            # What a * of the shell may have made many of.
            is_name = re.search(IN_TEXT, word) is not None
            hint = "a run directory means its newest checkpoint" if is_name else None
            raise ConfigError(text, hint=hint)
        flag, equals, value = word.partition("=")
        if equals:
            pairs.append((flag, value))
        elif rest and not rest[0].startswith("--"):
            pairs.append((flag, rest.pop(0)))
        else:
            pairs.append((flag, None))
    return pairs


def _override(tree: Tree, flag: str, text: str | None, notes: list[str]) -> None:
    name = flag[2:].replace("-", "_")
    name = Config.aliases.get(name, name)
    if name == "wandb":  # upstream's type
        text = {"true": "online", "false": "off"}.get(text.lower(), text) if text else "online"
    found = type_at(Config, tuple(name.split(".")), flag, notes)
    if found is None:
        return
    key, kind = found
    if text is None and bool in (kind, *typing.get_args(kind)):
        text = "true"
    if text is None:
        raise ConfigError(f"{flag} needs a value")
    value = parse_text(text, kind, flag)
    tree.set(key, coerce(value, kind, key, flag), flag)


def _with_number_keys(data: Any) -> Any:
    """JSON turns the frame counts of bucket tables into strings; turn them back."""
    if isinstance(data, dict):
        return {int(k) if is_whole(k) else k: _with_number_keys(v) for k, v in data.items()}
    return data


def as_python(config: Config) -> str:
    """The resolved config as a file that loads to the same config."""
    lines = []
    for name, value in to_dict(config).items():
        if name == "notes":
            lines += [f"# {note}" for note in value]
        elif isinstance(value, dict):
            lines += [f"{name} = {{", *(f"    {k!r}: {v!r}," for k, v in value.items()), "}"]
        else:
            lines.append(f"{name} = {value!r}")
    return "\n".join(lines) + "\n"
