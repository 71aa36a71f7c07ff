"""The environment, without secrets, and the files of a launch, for checks of the nodes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.errors import UsageError
from clusterctl.launch import environment
from clusterctl.payload.files.ownership import NotPrivate, refuse_open_folder
from clusterctl.payload.mask_secrets import HIDDEN
from trainer.runlog.own_modules import environment as own_environment
from trainer.runlog.own_modules import module_command

SHOW_TIMEOUT_S = 60.0
_HUB = ("HF_HOME", "HF_HUB_CACHE")
KEPT = ("NCCL_", "GLOO_", "CUDA_", "TORCH_DISTRIBUTED_DEBUG", *_HUB, "WANDB_MODE")


class LaunchLine(NamedTuple):
    model: str  # its type
    reads: dict[str, Any]  # files, on_head, at_first and wandb of LaunchNeeds


def parse_line(line: str) -> tuple[str, list[str]]:
    """CONFIG and the trainer's overrides of `--launch "stage1 --dataset.data-path X"`."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"--launch {line!r}: {error}") from None
    if not words or words[0].startswith("-"):
        hint = '--launch "stage1 --dataset.data-path X.csv"'
        raise UsageError("--launch wants a CONFIG first", hint=hint)
    return words[0], words[1:]


def resolve(
    config: str, overrides: Sequence[str], *, workdir: Path, env: Mapping[str, str]
) -> LaunchLine:
    """The launch as the trainer, in a separate process, reads it. Raises `UsageError`."""
    try:
        refuse_open_folder(str(workdir))
    except NotPrivate as error:
        hint = "start it in a folder of your own, or name one: --workdir DIR"
        raise UsageError(f"{error}, so no run starts there", hint=hint) from None
    command = module_command("trainer.config", "show", config, "--json", *overrides)
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    pipes["env"] = own_environment()
    try:
        done = subprocess.run(command, cwd=workdir, timeout=SHOW_TIMEOUT_S, check=False, **pipes)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the config {config} cannot be read: {error}") from None
    try:
        done.check_returncode()
        data = json.loads(done.stdout.strip().splitlines()[-1])["config"]
        model = str(data["model"]["type"])
        wandb = str(data.get("wandb", "off")) == "online"
    except (subprocess.CalledProcessError, ValueError, LookupError, TypeError, AttributeError):
        said, _, hint = (done.stderr.strip() or "no output").partition("\n  hint: ")
        why = said.splitlines()[-1]
        if not why.startswith("error: "):  # no sentence of the trainer's
            why = f"the config {config} cannot be read: {why}"
        raise UsageError(why.removeprefix("error: "), hint=hint or None) from None
    always, at_first = files_of(data, workdir, env)
    files = tuple(dict.fromkeys([*always, *at_first]))
    # Path's own raise where a folder may not be searched, or for ~nobody.
    here = [one for one in files if os.path.exists(os.path.expanduser(one))]  # noqa: PTH110, PTH111
    begun = tuple(one for one in files if one not in always)
    reads = {"files": files, "on_head": tuple(here), "at_first": begun, "wandb": wandb}
    return LaunchLine(model, reads)


def files_of(
    config: Mapping[str, Any], workdir: Path, env: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Paths that the run reads: data, published weights, the hub's cache of models; and those that
    only an attempt without a checkpoint of its own reads: the model's weights, --load."""
    data, load = _text(config, "dataset", "data_path"), config.get("load")
    model, *others = (
        _text(config, part, "from_pretrained") for part in ("model", "vae", "text_encoder")
    )
    always = [str((workdir / data).absolute())] if data else []
    always += [_weights(name, workdir, env) for name in others if name]
    at_first = [_weights(model, workdir, env)] if model else []
    at_first += [str((workdir / load).absolute())] if isinstance(load, str) and load else []
    return always, at_first


def _text(config: Mapping[str, Any], part: str, key: str) -> str:
    inner = config.get(part)
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, str) else ""


def _weights(name: str, workdir: Path, env: Mapping[str, str]) -> str:
    """A path; for `org/model` its folder in the hub's cache on the node."""
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not is_hub_id or (workdir / name).exists():
        return name if name.startswith("~") else str((workdir / name).absolute())
    home = env.get("HF_HUB_CACHE") or f"{env.get('HF_HOME') or '~/.cache/huggingface'}/hub"
    return f"{home}/models--{name.replace('/', '--')}"


def kept_environment(
    assignments: Iterable[str], preset: str, facts: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The ranks' variables that checks read, WANDB_API_KEY masked. Raises `UsageError`."""
    built = environment.build(
        os.environ, assignments=assignments, preset=preset, facts=facts, run_dir=Path("outputs")
    ).values()
    kept = {name: value for name, value in built.items() if name.startswith(KEPT)}
    if built.get("WANDB_API_KEY"):
        kept["WANDB_API_KEY"] = HIDDEN
    return kept
