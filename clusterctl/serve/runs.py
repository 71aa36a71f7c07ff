"""Which runs are followed, with which presets and prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.runs.find import find_run, is_run, runs_by_time
from clusterctl.serve.backlog import Follow
from clusterctl.serve.presets import Preset, default_preset, find_preset
from clusterctl.serve.source import CONFIG, Source
from trainer.runlog.prompt_file import prompt_lines

PROMPTS = "prompts.txt"


def find_runs(names: Sequence[str], numbers: Sequence[int], outputs: Path) -> list[Path]:
    """Directories of runs by path, name or number, or all of a folder; each once. Raises
    `UsageError`."""
    folders: dict[Path, None] = {}
    for name in names:
        place = Path(name)
        is_folder_of_runs = place.is_dir() and not is_run(place) and not (place / CONFIG).exists()
        if is_folder_of_runs:
            found = sorted(runs_by_time(place))
            if not found:
                raise UsageError(f"there is no run in {place}")
            folders.update(dict.fromkeys(path.resolve() for path in found))
        elif place.is_dir():
            folders[place.resolve()] = None
        else:
            folders[find_run(name, outputs).resolve()] = None
    for number in numbers:
        folders[find_run(str(number), outputs).resolve()] = None
    return list(folders)


def follow(
    source: Source,
    names: Sequence[str],
    known: Mapping[str, Preset],
    prompts: Path | None,
    *,
    validates: bool = False,
    has_videos: bool = True,
) -> Follow:
    """What is made of a run's checkpoints. Raises `UsageError`."""
    config = _config(source)
    if validates and not _keeps_clips(config):
        text = f"{source.name} keeps no clips for validation: it trains on all that it can"
        hint = "of other clips: python -m trainer.evaluate RUN --all --data-path MANIFEST"
        raise UsageError(text, hint=hint)
    wanted = (names or (default_preset(config),)) if has_videos else ()
    chosen = [find_preset(name, known) for name in wanted]
    sample = config.get("sample")
    own = sample if isinstance(sample, dict) else {}
    places = {one.name: _place(source, one, own, config, prompts) for one in chosen}
    texts = {name: _read(place) for name, place in places.items()}
    own_sample = own if any(one.own for one in chosen) else {}
    return Follow(source, chosen, texts, own_sample, places, validates)


def _keeps_clips(config: Mapping[str, Any]) -> bool:
    found = config.get("validation")
    keys = ("share", "data_path")
    return isinstance(found, dict) and any(found.get(key) for key in keys)


def _config(source: Source) -> dict[str, Any]:
    try:
        config = source.config()
    except ValueError as error:
        raise UsageError(f"{source.name}: {CONFIG} cannot be read: {error}") from None
    if config is None:
        text = f"{source.folder} has no {CONFIG}, so it is no run of this trainer"
        raise UsageError(text, hint="of a run that was launched just now it comes a little later")
    resolved = config.get("config", config)
    return resolved if isinstance(resolved, dict) else {}


def _place(
    source: Source,
    preset: Preset,
    own: Mapping[str, Any],
    config: Mapping[str, Any],
    given: Path | None,
) -> Path:
    """The prompts: --prompts, else those of the preset, of the run's config, or beside its data."""
    place = given or preset.prompts
    if place is None and isinstance(own.get("prompts"), str):
        place = Path(own["prompts"])
        _refuse_elsewhere(source, place)
    if place is None:
        data = config.get("dataset")
        path = data.get("data_path") if isinstance(data, dict) else None
        beside = [Path(path).parent / PROMPTS] if isinstance(path, str) else []
        places = [source.folder / PROMPTS, *beside]
        place = next((one for one in places if one.is_file()), None)
    if place is None:
        text = f"there are no prompts for {source.name}, preset {preset.name}"
        raise UsageError(text, hint="--prompts FILE has one a line")
    return place


def _refuse_elsewhere(source: Source, place: Path) -> None:
    """A run's config may be somebody else's: it must not show any file of this user's as prompts.

    Raises `UsageError`.
    """
    found = place.resolve()
    if not any(found.is_relative_to(one.resolve()) for one in (source.folder, Path.cwd())):
        text = f"the config of {source.name} takes its prompts from {place}, which is outside of it"
        raise UsageError(f"{text} and of this folder", hint=f"--prompts {place} if that is meant")


def _read(place: Path) -> list[str]:
    try:
        found = [line for line in prompt_lines(place) if line]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"the prompt file {place} cannot be read: {why}") from None
    if not found:
        raise UsageError(f"the prompt file {place} has no prompts")
    return found
