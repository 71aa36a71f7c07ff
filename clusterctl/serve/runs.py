"""Which runs are followed, with which presets and prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.runs.find import find_run, is_run, runs_by_time
from clusterctl.serve.backlog import Follow
from clusterctl.serve.presets import Preset, default_preset, find_preset
from clusterctl.serve.source import CONFIG, Source
from trainer.runlog import run_files
from trainer.runlog.run_files import prompt_lines, prompts_in

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
    texts = {name: _read(place, base) for name, (place, base) in places.items()}
    own_sample = own if any(one.own for one in chosen) else {}
    paths = {name: place for name, (place, _) in places.items()}
    return Follow(source, chosen, texts, own_sample, paths, validates)


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
) -> tuple[Path, Path | None]:
    """The prompts: --prompts, else those of the preset, of the run's config, or beside its data.

    With a folder where the run names the file: it may be somebody else's run. Nothing below the
    folder may be a link then, so no file of this user is shown as prompts.
    """
    place = given or preset.prompts
    if place is not None:
        return place, None
    if isinstance(own.get("prompts"), str):
        return _of_config(source, Path(own["prompts"]))
    data = config.get("dataset")
    path = data.get("data_path") if isinstance(data, dict) else None
    with contextlib.suppress(OSError, ValueError):  # too long a name, or no name
        if (source.folder / PROMPTS).is_file():
            return source.folder / PROMPTS, source.folder
        if isinstance(path, str) and (beside := Path(path).parent / PROMPTS).is_file():
            return _of_config(source, beside)
    text = f"there are no prompts for {source.name}, preset {preset.name}"
    raise UsageError(text, hint="--prompts FILE has one a line")


def _of_config(source: Source, place: Path) -> tuple[Path, Path]:
    """Raises `UsageError` for a file that is neither in the run nor in the current folder."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        found = place.resolve()
        for folder in (source.folder.resolve(), Path.cwd()):
            if found.is_relative_to(folder):
                return found, folder
    text = f"{source.name} would take its prompts from {place}, which is outside of it"
    raise UsageError(f"{text} and of this folder", hint=f"--prompts {place} if that is meant")


def _read(place: Path, folder: Path | None) -> list[str]:
    try:
        if folder is None:
            lines = prompt_lines(place)
        else:
            lines = prompts_in(run_files.read_bytes(folder, str(place.relative_to(folder))))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        hint = None if folder is None else "--prompts FILE has one a line"
        raise UsageError(f"the prompt file {place} cannot be read: {why}", hint=hint) from None
    if not any(lines):
        raise UsageError(f"the prompt file {place} has no prompts")
    return [line for line in lines if line]
