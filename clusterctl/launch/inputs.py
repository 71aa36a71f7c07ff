"""The environment, without secrets, and the files of a launch, for checks of the nodes."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.errors import UsageError
from clusterctl.launch import environment
from clusterctl.payload.files.ownership import NotPrivate, refuse_open_folder
from clusterctl.payload.secrets.marks import HIDDEN
from clusterctl.runs.ask_trainer import ask, refusal, run_trainer

MOST_NAMES = 10_000  # of a folder in which a name is looked for
_HUB = ("HF_HOME", "HF_HUB_CACHE")
KEPT = ("NCCL_", "GLOO_", "CUDA_", "TORCH_DISTRIBUTED_DEBUG", *_HUB, "WANDB_MODE")


class LaunchLine(NamedTuple):
    model: str  # its type
    reads: dict[str, Any]  # files, on_head, near, at_first and wandb of LaunchNeeds
    has_data: bool = True  # a manifest is named


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
    unread = f"the config {config} cannot be read"
    data = ask(["trainer.config", "show", config, "--json", *overrides], unread, workdir)
    try:
        data = data["config"]
        model = str(data["model"]["type"])
        wandb = str(data.get("wandb", "off")) == "online"
    except (LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{unread}: {error}") from None
    always, at_first = files_of(data, workdir, env)
    files = tuple(dict.fromkeys([*always, *at_first]))
    # Path's own raise where a folder may not be searched, or for ~nobody.
    here = [one for one in files if os.path.exists(os.path.expanduser(one))]  # noqa: PTH110, PTH111
    begun = tuple(one for one in files if one not in always)
    near = {one: found for one in files if one not in here and (found := _near(Path(one)))}
    reads: dict[str, Any] = {"files": files, "on_head": tuple(here), "near": near}
    reads |= {"at_first": begun, "wandb": wandb}
    return LaunchLine(model, reads, bool(_text(data, "dataset", "data_path")))


def _near(path: Path) -> str:
    """What the user may have meant: the one of its folder that begins so (a run's number), or the
    most alike; else nothing."""
    try:
        names = [one.name for one in itertools.islice(path.parent.iterdir(), MOST_NAMES)]
    except OSError:
        return ""
    begins = [name for name in names if name.startswith(f"{path.name}-")]
    found = begins if len(begins) == 1 else difflib.get_close_matches(path.name, names, 1)
    return str(path.with_name(found[0])) if found else ""


def refuse_untrainable(
    config: str, overrides: Sequence[str], line: LaunchLine, *, workdir: Path, ranks: int
) -> str | None:
    """Raises `UsageError`, in the trainer's words, for data that every rank would refuse.

    The trainer reads them here, where all of them are on this machine and torch is installed. The
    answer is None, or why nothing could be found out. `ranks` may be fewer than there will be.
    """
    if not line.has_data:
        hint = "--dataset.data-path FILE.csv; make one with python -m trainer.data.digits"
        raise UsageError("there is no dataset", hint=hint)
    is_here = set(line.reads["files"]) == set(line.reads["on_head"])
    if not is_here or importlib.util.find_spec("torch") is None:
        return None  # the checks of the nodes look for the files
    words = ["trainer.train", config, *overrides, "--dry-run"]
    try:
        done = run_trainer(words, workdir, WORLD_SIZE=str(ranks), RANK="0", CUDA_VISIBLE_DEVICES="")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trainer could not check the data here: {error}"
    if done.returncode == 0:
        return None
    refused = refusal(done.stderr)
    if refused is None:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return f"the trainer could not check the data here: {last}"
    raise refused


def files_of(
    config: Mapping[str, Any], workdir: Path, env: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Paths that the run reads: data, features or published encoders, the hub's cache of models;
    and those that only an attempt without a checkpoint of its own reads: the model's weights,
    --load."""
    load, features = config.get("load"), _text(config, "dataset", "features")
    model, *others = (
        _text(config, part, "from_pretrained") for part in ("model", "vae", "text_encoder")
    )
    data = [_text(config, "dataset", "data_path"), features]
    validation = config.get("validation")
    if isinstance(validation, dict) and validation.get("every"):
        data.append(_text(config, "validation", "data_path"))
    always = [str((workdir / one).absolute()) for one in data if one]
    if not features:  # they are in place of both encoders
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
