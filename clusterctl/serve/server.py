"""Follows runs and lets samplers make the videos of each new checkpoint, the newest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from clusterctl.serve.backlog import Backlog, Finished, Plan
from clusterctl.serve.claims import Claims
from clusterctl.serve.events import Events
from clusterctl.serve.sampler_pool import Answer, Lost, Order, SamplerPool, Slot
from clusterctl.serve.samplers import Samplers
from clusterctl.serve.source import Source
from clusterctl.serve.work import DONE, NEW, OPEN, SHEET_UNIT, Folder, Unit

TICK_S = 0.2
OTHERS_S = 2.0  # between two looks at what another server has claimed
VISIBLE_S = 90.0
PAUSE_S = 5.0  # before a batch is tried again
# Errors of the trainer that the same request meets again; all others are tried again.
FINAL = ("CheckpointError", "ConfigError", "EngineError", "OutOfMemory", "PathError")


class Server:
    """One life of `clusterctl serve`."""

    def __init__(
        self,
        plan: Plan,
        samplers: Samplers,
        claims: Mapping[Source, Claims],
        events: Events,
        on_finished: Finished,
    ) -> None:
        self._plan, self._claims = plan, claims
        self._pool = SamplerPool(samplers, events)
        self._backlog = Backlog(plan, claims, events, on_finished)
        self._events, self._on_finished = events, on_finished

    def run(self, is_over: Callable[[], bool]) -> int:
        """Until `is_over`, a request to stop, or with `once` until all is made; the exit code."""
        with self._pool:
            while not is_over() and not any(
                claims.is_asked_to_stop.is_set() for claims in self._claims.values()
            ):
                for found in self._pool.take(TICK_S):
                    self._take(found)
                self._backlog.update(self._busy())
                self._assign()
                self._events.progress(self._backlog.folders, len(self._pool.ready))
                if self._plan.once and self._is_finished():
                    break
            self._backlog.update(self._busy(), now=True)
        return self._backlog.exit_code() or (3 if self._pool.is_any_down else 0)

    def _is_finished(self) -> bool:
        """With `once`: nothing is left that could be made now."""
        if self._pool.orders or not self._backlog.is_seen:
            return False
        return self._backlog.is_made() or self._pool.is_all_down

    def _busy(self) -> list[Folder]:
        return [order.folder for order in self._pool.orders if order.folder is not None]

    # What arrives

    def _take(self, found: Answer | Lost) -> None:
        order, folder = found.order, found.order.folder
        if isinstance(found, Lost):
            self._lose(found)
        elif folder is None:
            if "error" in found.data:  # of the encoders; the first look at a folder says it again
                self._events.warning(found.data["error"], found.data["hint"])
        elif "begun" in found.data:
            if folder.begun_s is None:
                folder.begun_s = time.time()
                self._events.begun(folder)
        elif "error" in found.data:
            self._fail(folder, order, found.data)
        elif "look" in found.data:
            self._take_look(folder, order, found.data["look"])
        elif order.unit is not None:
            folder.made += len(found.data["made"])
            order.unit.is_busy = False
            # A network drive may hide them for a while; then they are not made again.
            order.unit.not_before_s = time.monotonic() + VISIBLE_S
            self._give_back(folder, order.unit.name)
        else:
            self._close(folder)

    def _take_look(self, folder: Folder, order: Order, look: dict[str, Any]) -> None:
        if {job["index"] for job in look["jobs"]} != set(range(len(folder.prompts))):
            self._lose(Lost(order, "the sampler does not list a video for each prompt", True))
        elif folder.state == NEW:  # not given up meanwhile
            folder.take_look(look)

    def _lose(self, lost: Lost) -> None:
        """What a sampler had goes to others."""
        folder = lost.order.folder
        if folder is None:
            return
        self._release(lost.order)
        if folder.state not in (NEW, OPEN):
            return
        if lost.counts and not folder.try_again(lost.why, PAUSE_S, lost.order.unit):
            self._events.failed(folder)

    def _release(self, order: Order) -> None:
        assert order.folder is not None
        order.folder.is_looking = order.folder.is_closing = False
        if order.unit is not None:
            order.unit.is_busy = False
        if order.kind in ("make", "sheet"):
            self._give_back(order.folder, order.unit.name if order.unit else SHEET_UNIT)

    def _fail(self, folder: Folder, order: Order, answer: dict[str, Any]) -> None:
        self._release(order)
        if folder.state not in (NEW, OPEN):
            return  # another batch of it has failed before
        text = answer["error"]
        if not self._backlog.is_there(folder):
            self._backlog.leave(folder)
        elif answer["kind"] in FINAL:
            folder.fail(text)
            self._events.failed(folder, answer["hint"])
        elif not folder.try_again(text, PAUSE_S, order.unit):
            self._events.failed(folder, answer["hint"])

    def _assign(self) -> None:
        for slot in self._pool.ready:
            if slot.order is None and not self._give_work(slot):
                self._give_warmth(slot)

    def _give_work(self, slot: Slot) -> bool:
        now = time.monotonic()
        for folder in self._backlog.left:
            if folder.not_before_s > now or not folder.source.is_here(folder.sealed.name):
                continue
            if folder.state == NEW and not folder.is_looking:
                folder.is_looking = True
                self._send(slot, "look", folder, None)
                return True
            if folder.state == OPEN and self._give_batch(slot, folder, now):
                return True
        return False

    def _give_batch(self, slot: Slot, folder: Folder, now: float) -> bool:
        try:
            return self._claim_batch(slot, folder, now)
        except OSError as error:
            folder.not_before_s = now + PAUSE_S
            self._events.warning(f"{folder.path} cannot be written: {error.strerror}")
            return False

    def _claim_batch(self, slot: Slot, folder: Folder, now: float) -> bool:
        """Raises OSError."""
        claims = self._claims[folder.source]
        folder.drop_finished()
        for unit in folder.units:
            if unit.is_busy or unit.not_before_s > now:
                continue
            if claims.take(folder.path, unit.name):
                unit.is_busy = True
                self._send(slot, "make", folder, unit)
                return True
            unit.not_before_s = now + OTHERS_S
        if folder.units or folder.is_closing:
            return False
        if folder.is_served():  # by another server
            folder.state = DONE
            self._events.finished(folder)
        elif claims.take(folder.path, SHEET_UNIT):
            folder.is_closing = True
            self._send(slot, "sheet", folder, None)
            return True
        folder.not_before_s = now + OTHERS_S
        return False

    def _give_warmth(self, slot: Slot) -> None:
        """While there is nothing to make: read the encoders for what will come."""
        for follow in self._plan.follows:
            name = str(follow.source.folder)
            if name in slot.warmed or not (follow.source.folder / "config.json").is_file():
                continue
            slot.warmed.add(name)
            if len(slot.warmed) > 1:
                continue  # one at a time fits
            request = {"run_dir": name, "own": True, "sample": {}}
            self._pool.send(slot, "warm", request)
            return

    def _send(self, slot: Slot, kind: str, folder: Folder, unit: Unit | None) -> None:
        slot.warmed.add(str(folder.source.folder))
        more: dict[str, Any] = {}
        if unit is not None:
            more = {"first": unit.first, "end": unit.end, "files": list(unit.files)}
        elif folder.look is not None:
            more = {"files": [job["file"] for job in folder.look["jobs"]]}
        self._pool.send(slot, kind, folder.request(), folder, unit, **more)

    def _give_back(self, folder: Folder, unit: str) -> None:
        with suppress(OSError):
            self._claims[folder.source].give_back(folder.path, unit)

    def _close(self, folder: Folder) -> None:
        """The last of a folder: its index, then what others are told."""
        try:
            folder.finish()
        except (OSError, ValueError) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"{error.filename or folder.path} cannot be written: {error.strerror}"
            self._give_back(folder, SHEET_UNIT)
            if not folder.try_again(why, PAUSE_S):
                self._events.failed(folder)
            return
        self._on_finished(folder, self._claims[folder.source], is_new=True)
        self._events.finished(folder)


def serve(
    plan: Plan,
    samplers: Callable[[Mapping[Source, Claims]], Samplers],
    events: Events,
    on_finished: Finished,
    is_over: Callable[[], bool],
    log: str = "",
) -> int:
    """Follow runs whose sources were started; the exit code. Raises OSError where a run's folder
    is read only."""
    with ExitStack() as stack:
        claims: dict[Source, Claims] = {}
        for follow in plan.follows:
            names = ", ".join(preset.name for preset in follow.presets)
            opened = Claims(follow.source.folder / "samples", names, log)
            claims[follow.source] = stack.enter_context(opened)
            opened.sweep()
        return Server(plan, samplers(claims), claims, events, on_finished).run(is_over)
