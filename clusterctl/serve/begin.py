"""From the words of the command line to a plan: which runs, which presets, which prompts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.nodes import Node
from clusterctl.output import Output
from clusterctl.remote.cluster import Cluster
from clusterctl.runs.find import find_run, is_run, runs_by_time
from clusterctl.serve.claims import Claims
from clusterctl.serve.events import Events
from clusterctl.serve.presets import Preset, default_preset, find_preset, read_presets
from clusterctl.serve.samplers import Samplers
from clusterctl.serve.server import Follow, Plan, serve
from clusterctl.serve.source import CONFIG, LocalRun, Source
from clusterctl.serve.wanted import Choice
from clusterctl.serve.work import read_prompts
from clusterctl.signal_handlers import handled_by
from clusterctl.transport.local import LocalTransport

PROMPTS = "prompts.txt"
HOME = str(Path(__file__).resolve().parents[2])  # of the checkout, where it is one


def find_runs(names: Sequence[str], numbers: Sequence[int], outputs: Path) -> list[Source]:
    """Runs by directory, name or number, or all of a folder; each once. Raises `UsageError`."""
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
    if not folders:
        folders[find_run(None, outputs).resolve()] = None
    return [LocalRun(folder) for folder in folders]


def follow(
    source: Source, names: Sequence[str], known: Mapping[str, Preset], prompts: Path | None
) -> Follow:
    """What is made of a run's checkpoints. Raises `UsageError`."""
    config = _config(source)
    chosen = [find_preset(name, known) for name in names or (default_preset(config),)]
    sample = config.get("sample")
    own = sample if isinstance(sample, dict) else {}
    texts = {one.name: _prompts(source, one, own, config, prompts) for one in chosen}
    return Follow(source, chosen, texts, own if any(one.own for one in chosen) else {})


def _config(source: Source) -> dict[str, Any]:
    try:
        config = source.config()
    except ValueError as error:
        raise UsageError(f"{source.name}: {CONFIG} cannot be read: {error}") from None
    if config is None:
        text = f"{source.folder} has no {CONFIG}, so it is no run of this trainer"
        raise UsageError(text)
    resolved = config.get("config", config)
    return resolved if isinstance(resolved, dict) else {}


def _prompts(
    source: Source,
    preset: Preset,
    own: Mapping[str, Any],
    config: Mapping[str, Any],
    given: Path | None,
) -> list[str]:
    """--prompts, else those of the preset, of the run's config, or beside its data."""
    place = given or preset.prompts
    if place is None and isinstance(own.get("prompts"), str):
        place = Path(own["prompts"])
    if place is None:
        data = config.get("dataset")
        path = data.get("data_path") if isinstance(data, dict) else None
        beside = [Path(path).parent / PROMPTS] if isinstance(path, str) else []
        places = [source.folder / PROMPTS, *beside]
        place = next((one for one in places if one.is_file()), None)
    if place is None:
        text = f"there are no prompts for {source.name}, preset {preset.name}"
        raise UsageError(text, hint="--prompts FILE has one a line")
    try:
        found = read_prompts(place)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"the prompt file {place} cannot be read: {why}") from None
    if not found:
        raise UsageError(f"the prompt file {place} has no prompts")
    return found


def sampler_args(python: str, gpus: str | None, tokens: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Of the payload. `tokens` are (path, first bytes) of files that a node reads if it shares the
    folders of the runs."""
    devices = None if gpus is None else [None] if gpus == "none" else gpus.split(",")
    return {"python": python, "home": HOME, "gpus": devices, "tokens": tokens}


@dataclass(frozen=True)
class Wanted:
    """The options of the command, by their names."""

    runs: Sequence[str]
    numbers: Sequence[tuple[int, ...]]
    outputs: Path
    names: Sequence[str]
    presets: Path | None
    prompts: Path | None
    weights: str
    last_step: int | None
    every: int
    only_first_of_epoch: bool
    once: bool
    gpus: str | None
    python: str
    dry_run: bool


def begin(wanted: Wanted, output: Output, on_finished: Callable[[Path], None]) -> int:
    """Follow the runs; the exit code. `on_finished` gets a run's folder after each checkpoint."""
    plan = plan_of(wanted)
    cluster = Cluster([Node("this machine")], LocalTransport())
    events = Events(output)

    def samplers(claims: Mapping[Source, Claims]) -> Samplers:
        tokens = [(str(one.token_file), one.id) for one in claims.values()]
        args = sampler_args(wanted.python, wanted.gpus, tokens)
        return Samplers(cluster, args, lambda *_: None, lambda *_: None)

    signals: list[int] = []
    with handled_by(lambda number, _: signals.append(number)):
        finished = lambda folder: on_finished(folder.source.folder)  # noqa: E731
        code = serve(plan, samplers, events, finished, lambda: bool(signals))
    events.close()
    return 130 if code == 0 and signal.SIGINT in signals else code


def plan_of(wanted: Wanted) -> Plan:
    """Raises `UsageError`."""
    numbers = [number for group in wanted.numbers for number in group]
    sources = find_runs(wanted.runs, numbers, wanted.outputs)
    known = read_presets(wanted.presets)
    follows = [follow(source, wanted.names, known, wanted.prompts) for source in sources]
    after = -1 if wanted.last_step is None else wanted.last_step
    choice = Choice(after, wanted.every, wanted.only_first_of_epoch)
    return Plan(follows, choice, wanted.weights, wanted.once)
