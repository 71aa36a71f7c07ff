"""What a launch line will ask of the nodes: its environment and the files it names.

The config is resolved by the trainer itself, in a process of its own, with the user's overrides;
nothing is started. Secrets stay where they are: of the environment only what checks read is kept.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError

SHOW_TIMEOUT_S = 60.0
KEPT = (
    "NCCL_",
    "GLOO_",
    "CUDA_",
    "TORCH_DISTRIBUTED_DEBUG",
    "HF_HOME",
    "HF_HUB_CACHE",
    "WANDB_MODE",
)


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A config with its overrides, resolved."""

    config: str
    files: tuple[str, ...]
    wandb: bool


def parse_line(line: str) -> tuple[str, list[str]]:
    """CONFIG and the trainer's overrides of `--launch "stage1 --dataset.data-path X"`."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"--launch {line!r}: {error}") from None
    if not words or words[0].startswith("-"):
        raise UsageError(
            "--launch wants a CONFIG first", hint='--launch "stage1 --dataset.data-path X.csv"'
        )
    return words[0], words[1:]


def resolve(
    config: str, overrides: Sequence[str], *, workdir: Path, env: Mapping[str, str]
) -> LaunchLine:
    """The launch as the trainer understands it. Raises `UsageError` with the trainer's words."""
    command = [sys.executable, "-m", "trainer.config", "show", config, "--json", *overrides]
    try:
        done = subprocess.run(
            command,
            cwd=workdir,
            capture_output=True,
            text=True,
            timeout=SHOW_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        data = (
            json.loads(done.stdout.strip().splitlines()[-1])["config"]
            if not done.returncode
            else None
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the config {config} cannot be read: {error}") from None
    except (ValueError, IndexError, KeyError):
        data = None
    if not isinstance(data, dict):
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
        raise UsageError(f"the config {config} cannot be read: {said[-1]}")
    wandb = str(data.get("wandb", "off")) == "online"
    return LaunchLine(config, tuple(files_of(data, workdir, env)), wandb)


def read_words(
    config: str, overrides: Sequence[str], *, workdir: Path, env: Mapping[str, str]
) -> LaunchLine:
    """What the overrides alone say: for the trainer to read a config would take seconds."""
    plain: dict[str, Any] = {}
    words = list(overrides)
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        flag, equals, value = word[2:].partition("=")
        if not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        part, _, key = flag.replace("-", "_").rpartition(".")
        part, key = _SHORT.get(key, (part, key)) if not part else (part, key)
        if value and not value.startswith("--"):
            (plain.setdefault(part, {}) if part else plain)[key] = value
    wandb = plain.get("wandb") == "online"
    return LaunchLine(config, tuple(files_of(plain, workdir, env)), wandb)


# Upstream's short flags, as the trainer takes them.
_SHORT = {"data_path": ("dataset", "data_path"), "ckpt_path": ("model", "from_pretrained")}


def files_of(config: Mapping[str, Any], workdir: Path, env: Mapping[str, str]) -> list[str]:
    """Paths that the run reads: data, checkpoint, published weights, the hub's cache of models."""
    found: dict[str, None] = {}
    data = _text(config, "dataset", "data_path")
    if data:
        found[str((workdir / data).absolute())] = None
    for part in ("model", "vae", "text_encoder"):
        name = _text(config, part, "from_pretrained")
        if name:
            found[_weights(name, workdir, env)] = None
    load = config.get("load")
    if isinstance(load, str) and load:
        found[str((workdir / load).absolute())] = None
    return list(found)


def _text(config: Mapping[str, Any], part: str, key: str) -> str:
    inner = config.get(part)
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, str) else ""


def _weights(name: str, workdir: Path, env: Mapping[str, str]) -> str:
    """A path as it stands, `org/model` as its folder in the hub's cache on the node."""
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not is_hub_id or (workdir / name).exists():
        return name if name.startswith("~") else str((workdir / name).absolute())
    home = env.get("HF_HUB_CACHE") or (
        f"{env['HF_HOME']}/hub" if env.get("HF_HOME") else "~/.cache/huggingface/hub"
    )
    return f"{home}/models--{name.replace('/', '--')}"


def kept_environment(
    assignments: Iterable[str],
    preset: str,
    device: str = "auto",
    facts: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The ranks' variables that checks look at, as `clusterctl launch` would set them.

    Of WANDB_API_KEY only that it is there. Raises `UsageError` for a bad --env or --nccl.
    """
    from clusterctl.launch import environment
    from clusterctl.payload.mask_secrets import HIDDEN

    built = environment.build(
        os.environ,
        assignments=assignments,
        preset=preset,
        facts=facts,
        device=device,
        run_dir=Path("outputs"),
    ).values()
    kept = {name: value for name, value in built.items() if name.startswith(KEPT)}
    if built.get("WANDB_API_KEY"):
        kept["WANDB_API_KEY"] = HIDDEN
    return kept
