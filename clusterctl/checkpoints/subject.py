"""Reads what a plan is about: a run directory or a config, and the runs beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.checkpoints.on_disk import Checkpoint, FreeSpace, checkpoints_in, free_space
from clusterctl.checkpoints.records import RunRecord, read_run
from clusterctl.checkpoints.settings_of_run import (
    CONFIG_FILE,
    RunSettings,
    Size,
    predicted_size,
    settings_in,
    settings_of,
)
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.runs.find import find_run, runs_by_time

MOST_RUNS = 50  # of a folder, the newest ones


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, or a config that has not been started. `size` and `space` are None with a reason."""

    name: str  # of the run directory or config, as given
    settings: RunSettings
    record: RunRecord | None  # None before the start
    others: tuple[RunRecord, ...] = ()  # runs beside it whose failures count too
    checkpoints: tuple[Checkpoint, ...] = ()
    size: Size | None = None
    size_source: str = ""  # what it was measured on, or why it is not known
    space: FreeSpace | None = None
    space_why: str = ""  # why it is not known
    left_out: tuple[str, ...] = ()  # checkpoints that are not counted, and why


def read_subject(
    name: str | None, outputs: Path | None, overrides: Sequence[str], *, all_runs: bool
) -> Subject:
    """Of a run directory, a config, or the newest run of a folder, by default `outputs`.

    Raises UsageError for what is neither, and CouldNotFindOut for a folder that cannot be read.
    """
    given = Path(name) if name is not None else _newest(outputs or Path("outputs"))
    if name is not None and name.isascii() and name.isdigit() and not given.exists():
        given = find_run(name, outputs or Path("outputs"))
    if given.name == CONFIG_FILE and given.is_file():
        given = given.parent
    if given.is_dir() and not (given / CONFIG_FILE).is_file() and runs_by_time(given):
        given = _newest(given)  # the folder of all runs
    try:
        if not given.is_dir():
            return _of_config(name or "", outputs, overrides)
        if overrides:
            raise UsageError(f"a run takes no overrides of its config, here {overrides[0]}")
        return _of_run(given, outputs, all_runs=all_runs)
    except OSError as error:
        raise CouldNotFindOut(f"{given} cannot be read: {error.strerror or error}") from None


def _of_run(run_dir: Path, outputs: Path | None, *, all_runs: bool) -> Subject:
    settings, record = settings_in(run_dir), read_run(run_dir)
    found, left_out = checkpoints_in(run_dir)
    others = _runs(run_dir.absolute().parent, run_dir) if all_runs else ()
    size, source = _size(run_dir, found)
    space, why = _space(outputs or run_dir)
    checkpoints, out = tuple(found), tuple(left_out)
    name = str(run_dir)
    return Subject(name, settings, record, others, checkpoints, size, source, space, why, out)


def _of_config(config: str, outputs: Path | None, overrides: Sequence[str]) -> Subject:
    settings = settings_of(config, overrides)
    folder = outputs or Path(settings.outputs)
    size, source = _predicted(config, overrides)
    space, why = _space(folder)
    return Subject(config, settings, None, _runs(folder), (), size, source, space, why)


def _size(run_dir: Path, found: Sequence[Checkpoint]) -> tuple[Size | None, str]:
    if found:
        return found[-1].size, f"measured: {found[-1].path.name}"
    return _predicted(str(run_dir / CONFIG_FILE), ())


def _predicted(config: str, overrides: Sequence[str]) -> tuple[Size | None, str]:
    try:
        return predicted_size(config, overrides), "predicted from the config"
    except UsageError as error:
        return None, str(error)


def _space(folder: Path) -> tuple[FreeSpace | None, str]:
    try:
        return free_space(folder), ""
    except OSError as error:
        return None, f"{folder}: {error.strerror or error}"


def _newest(outputs: Path) -> Path:
    """The run that was written to last. Raises UsageError without one."""
    found = runs_by_time(outputs)
    if not found:
        hint = "name a run directory or a config: clusterctl plan-checkpoints stage1"
        raise UsageError(f"there is no run in {outputs}", hint=hint)
    return found[0]


def _runs(outputs: Path, own: Path | None = None) -> tuple[RunRecord, ...]:
    """The runs of a folder but `own`; those that cannot be read are left out."""
    records = []
    for path in runs_by_time(outputs)[:MOST_RUNS]:
        with contextlib.suppress(OSError):
            if own is None or not path.samefile(own):
                records.append(read_run(path))
    return tuple(records)
