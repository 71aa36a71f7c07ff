"""What a server has to make: a folder for each checkpoint that was chosen, and its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.serve.claims import Claims
from clusterctl.serve.events import Events
from clusterctl.serve.presets import Preset
from clusterctl.serve.source import Source
from clusterctl.serve.wanted import Choice, Sealed
from clusterctl.serve.work import DONE, FAILED, GONE, NEW, OPEN, Folder, LossFolder

# Gets each folder that is complete and the run's claims; `is_new` where that was just now.
Finished = Callable[..., None]
GIVE_UP_S = 60.0  # with --once, of a run elsewhere that does not answer
LOOK_S = 1.0  # between two looks at all folders, unless there is a new checkpoint


@dataclass(frozen=True, slots=True)
class Follow:
    """A run, what is made of its checkpoints, and which of them."""

    source: Source
    presets: Sequence[Preset]
    prompts: Mapping[str, Sequence[str]]  # by preset
    own_sample: Mapping[str, Any]
    places: Mapping[str, Path] = field(default_factory=dict)  # of the prompts
    validates: bool = False  # the validation loss, too

    def folders_of(self, sealed: Sealed, weights: str) -> Iterator[Folder]:
        """What is made of a checkpoint."""
        for preset in self.presets:
            prompts = self.prompts[preset.name]
            yield Folder(self.source, sealed, preset, prompts, weights, self.own_sample)
        if self.validates:
            yield LossFolder(self.source, sealed)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a server does."""

    follows: Sequence[Follow]
    choice: Choice
    weights: str
    once: bool


class Backlog:
    """The folders of all runs that a server follows."""

    def __init__(
        self, plan: Plan, claims: Mapping[Source, Claims], events: Events, on_finished: Finished
    ) -> None:
        self._plan, self._claims = plan, claims
        self._events, self._on_finished = events, on_finished
        self._folders: dict[tuple[Path, str], Folder] = {}
        self._looked: dict[Source, Any] = {}
        self._looked_s = self._stuck_s = 0.0  # monotonic

    @property
    def folders(self) -> list[Folder]:
        return list(self._folders.values())

    @property
    def left(self) -> list[Folder]:
        """Those that are not complete: the checkpoint that was sealed last comes first."""
        left = [one for one in self._folders.values() if one.state in (NEW, OPEN)]
        return sorted(left, key=lambda one: (-one.sealed.sealed_s, -one.sealed.step))

    def update(self, busy: Collection[Folder], *, now: bool = False) -> None:
        """Look which checkpoints there are, if it is time to; `busy` has a sampler, whose answer
        says more about a checkpoint that is gone."""
        at_s, follows = time.monotonic(), self._plan.follows
        is_new = any(self._looked.get(one.source) is not one.source.sealed for one in follows)
        if not is_new and not now and at_s - self._looked_s < LOOK_S:
            return
        self._looked_s = at_s
        for follow in follows:
            self._looked[follow.source] = follow.source.sealed
            self._events.source(follow.source)
            if follow.source.sealed is not None:
                self._update_run(follow, follow.source.sealed, busy)

    def _update_run(self, follow: Follow, there: list[Sealed], busy: Collection[Folder]) -> None:
        source, names = follow.source, {one.name for one in there}
        chosen = self._plan.choice.of(there)
        for sealed in chosen:
            for folder in follow.folders_of(sealed, self._plan.weights):
                self._add(folder)
        for folder in self.left:
            if folder.source is not source:
                continue
            if (why := source.broken.get(folder.sealed.name)) is not None:
                folder.fail(why)
                self._events.failed(folder)
            elif folder.sealed.name not in names and not any(one is folder for one in busy):
                self.leave(folder)
        left = [one.sealed.name for one in self.left if one.source is source]
        source.wants(left)
        for name in {one.name for one in chosen} - set(left):
            source.finished(name)

    def _add(self, folder: Folder) -> None:
        key = folder.source.folder / folder.sealed.name, folder.preset.name
        known = self._folders.get(key)
        if known is not None and known.sealed.stamp == folder.sealed.stamp:
            return
        if folder.is_served():
            folder.state = DONE
            self._on_finished(folder, self._claims[folder.source], is_new=False)
        self._folders[key] = folder

    def is_there(self, folder: Folder) -> bool:
        """Whether its checkpoint is there, also since the last look at its run."""
        name, source = folder.sealed.name, folder.source
        if not any(one.name == name for one in source.sealed or ()):
            return False
        return not source.is_here(name) or (source.folder / name / "manifest.json").is_file()

    def leave(self, folder: Folder) -> None:
        """Its checkpoint was deleted."""
        folder.state = GONE
        self._events.gone(folder)

    @property
    def is_seen(self) -> bool:
        """Whether all runs were looked at, or could not be."""
        return all(one.source.sealed is not None or one.source.why for one in self._plan.follows)

    def is_made(self) -> bool:
        """Whether nothing is left but on clusters that have not answered for long."""
        left = self.left
        if not left:
            return True
        if any(one.source.is_here(one.sealed.name) or not one.source.why for one in left):
            self._stuck_s = 0.0
            return False
        self._stuck_s = self._stuck_s or time.monotonic()
        return time.monotonic() - self._stuck_s > GIVE_UP_S

    def exit_code(self) -> int:
        """1 where something failed, 3 where it could not be made or found out, else 0."""
        states = {one.state for one in self._folders.values()}
        if FAILED in states:
            return 1
        seen = {id(one.source) for one in self._folders.values()}
        is_missing = any(id(one.source) not in seen for one in self._plan.follows)
        return 3 if self._plan.once and (is_missing or states & {NEW, OPEN}) else 0
