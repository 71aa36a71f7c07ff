"""Follows runs and lets samplers make the videos of each new checkpoint, the newest first."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.serve.claims import Claims
from clusterctl.serve.events import Events
from clusterctl.serve.presets import Preset
from clusterctl.serve.samplers import Message, Samplers
from clusterctl.serve.source import Source
from clusterctl.serve.wanted import Choice
from clusterctl.serve.work import DONE, FAILED, GONE, NEW, OPEN, SHEET_UNIT, Folder, Unit

# Gets each folder that is complete and the run's claims; `is_new` where that was just now.
Finished = Callable[..., None]
TICK_S = 0.2
OTHERS_S = 2.0  # between two looks at what another server has claimed
VISIBLE_S = 90.0
PAUSE_S = 5.0  # before a batch is tried again
ORDER_S = 3600.0  # for one batch; then its sampler is ended


@dataclass(frozen=True, slots=True)
class Follow:
    """A run, what is made of its checkpoints, and which of them."""

    source: Source
    presets: Sequence[Preset]
    prompts: Mapping[str, Sequence[str]]  # by preset
    own_sample: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a server does."""

    follows: Sequence[Follow]
    choice: Choice
    weights: str
    once: bool


@dataclass
class Order:
    """What a sampler has been told to do."""

    kind: str  # warm, look, make, sheet
    folder: Folder | None
    unit: Unit | None
    sent_s: float  # monotonic


@dataclass
class Slot:
    """A sampler."""

    node: str
    number: int
    is_ready: bool = False
    order: int | None = None
    warmed: set[str] = field(default_factory=set)


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
        self._plan, self._samplers, self._claims = plan, samplers, claims
        self._events, self._on_finished = events, on_finished
        self._folders: dict[tuple[Path, str], Folder] = {}
        self._slots: dict[tuple[str, int], Slot] = {}
        self._down: dict[str, str] = {node.name: "" for node in samplers.cluster.nodes}
        self._orders: dict[int, Order] = {}
        self._number = 0
        self._order_limit_s = ORDER_S

    def run(self, is_over: Callable[[], bool]) -> int:
        """Until `is_over`, a request to stop, or with `once` until all is made; the exit code."""
        with self._samplers:
            while not is_over() and not any(
                claims.is_asked_to_stop.is_set() for claims in self._claims.values()
            ):
                self._take_messages()
                self._update_folders()
                self._check_limits()
                self._assign()
                self._events.progress(list(self._folders.values()), len(self._ready()))
                if self._plan.once and self._is_finished():
                    break
        return self._exit_code()

    def _exit_code(self) -> int:
        folders = self._folders.values()
        if any(folder.state == FAILED for folder in folders):
            return 1
        if self._plan.once and any(folder.state in (NEW, OPEN) for folder in folders):
            return 3
        has_some = {id(folder.source) for folder in folders}
        if self._plan.once and any(id(f.source) not in has_some for f in self._plan.follows):
            return 3  # no checkpoint yet, or it could not be looked at
        return 3 if any(self._down.values()) else 0

    def _is_finished(self) -> bool:
        """With `once`: nothing is left that could be made now."""
        looked = all(f.source.sealed is not None or f.source.why for f in self._plan.follows)
        is_left = any(one.state in (NEW, OPEN) for one in self._folders.values())
        nobody = all(self._down.values()) and not self._slots
        return looked and not self._orders and (not is_left or nobody)

    # What arrives

    def _take_messages(self) -> None:
        deadline = time.monotonic() + TICK_S
        while True:
            try:
                message = self._samplers.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            self._take(message)
            if time.monotonic() > deadline:
                return

    def _take(self, message: Message) -> None:
        node, key = message.node, (message.node, message.slot)
        if message.kind == "up":
            self._events.node_up(node, message.data["slots"], self._down[node])
            self._down[node] = ""
            for number in range(message.data["slots"]):
                self._slots[node, number] = Slot(node, number)
        elif message.kind == "down":
            self._events.node_down(node, message.why, self._down[node])
            self._down[node] = message.why
            for slot in [one for one in self._slots.values() if one.node == node]:
                self._lose(slot, message.why, counts=False)
                del self._slots[slot.node, slot.number]
        elif message.kind == "ended" and key in self._slots:
            self._events.sampler_ended(node, message.slot, message.why)
            self._slots[key].is_ready = False
            self._slots[key].warmed.clear()
            self._lose(self._slots[key], message.why, counts=True)
        elif message.kind == "sent" and key in self._slots:
            self._lose(self._slots[key], message.why, counts=True)
        elif message.kind == "answer" and key in self._slots:
            self._take_answer(self._slots[key], message.data)

    def _take_answer(self, slot: Slot, answer: dict[str, Any]) -> None:
        if "ready" in answer:
            slot.is_ready = True
            self._events.ready(slot.node, slot.number, answer["ready"])
            return
        order = self._orders.get(answer["id"])
        if order is None or slot.order != answer["id"]:
            return  # it was given up meanwhile
        folder = order.folder
        if "begun" in answer:
            if folder is not None and folder.begun_s is None:
                folder.begun_s = time.time()
                self._events.begun(folder)
            return
        self._end_order(slot)
        if folder is None:
            if "error" in answer:
                self._events.warning(f"{answer['error']}", answer["hint"])
        elif "error" in answer:
            self._fail(folder, order, answer)
        elif "look" in answer:
            folder.take_look(answer["look"])
        elif "made" in answer and order.unit is not None:
            folder.made += len(answer["made"])
            order.unit.is_busy = False
            # A network drive may hide them for a while; then they are not made again.
            order.unit.not_before_s = time.monotonic() + VISIBLE_S
            self._give_back(folder, order.unit.name)
        elif "sheet" in answer:
            self._close(folder)

    def _end_order(self, slot: Slot) -> Order | None:
        number, slot.order = slot.order, None
        return None if number is None else self._orders.pop(number, None)

    def _lose(self, slot: Slot, why: str, *, counts: bool) -> None:
        """What a sampler had goes to others."""
        order = self._end_order(slot)
        if order is None or order.folder is None:
            return
        self._release(order)
        if counts and not order.folder.try_again(why, PAUSE_S):
            self._events.failed(order.folder)
        order.folder.is_looking = order.folder.is_closing = False

    def _release(self, order: Order) -> None:
        assert order.folder is not None
        if order.unit is not None:
            order.unit.is_busy = False
        if order.kind in ("make", "sheet"):
            self._give_back(order.folder, order.unit.name if order.unit else SHEET_UNIT)

    def _fail(self, folder: Folder, order: Order, answer: dict[str, Any]) -> None:
        self._release(order)
        folder.is_looking = folder.is_closing = False
        text, is_expected = answer["error"], answer["kind"] != "VideoError"
        known = folder.source.sealed or ()
        if not any(one.name == folder.sealed.name for one in known) or not self._is_there(folder):
            self._leave(folder)
        elif is_expected and answer["kind"].endswith(("Error", "OutOfMemory")):
            folder.fail(text)
            self._events.failed(folder, answer["hint"])
        elif not folder.try_again(text, PAUSE_S):
            self._events.failed(folder, answer["hint"])

    def _is_there(self, folder: Folder) -> bool:
        """Not deleted since the last look at its run."""
        place = folder.source.folder / folder.sealed.name / "manifest.json"
        return not folder.source.is_here(folder.sealed.name) or place.is_file()

    def _leave(self, folder: Folder) -> None:
        folder.state = GONE
        self._events.gone(folder)

    # What there is to do

    def _update_folders(self) -> None:
        for follow in self._plan.follows:
            source = follow.source
            self._events.source(source)
            if source.sealed is None:
                continue
            there = {one.name for one in source.sealed}
            chosen = self._plan.choice.of(source.sealed)
            for sealed in chosen:
                for preset in follow.presets:
                    self._add(follow, sealed, preset)
            for folder in self._folders.values():
                if folder.source is not source or folder.state not in (NEW, OPEN):
                    continue
                if (why := source.broken.get(folder.sealed.name)) is not None:
                    folder.fail(why)
                    self._events.failed(folder)
                elif folder.sealed.name not in there and not self._is_busy(folder):
                    self._leave(folder)
            left = [one.sealed.name for one in self._ordered() if one.source is source]
            source.wants(left)
            for name in {one.name for one in chosen} - set(left):
                source.finished(name)

    def _add(self, follow: Follow, sealed: Any, preset: Preset) -> None:
        key = follow.source.folder / sealed.name, preset.name
        known = self._folders.get(key)
        if known is not None and known.sealed.stamp == sealed.stamp:
            return
        prompts = follow.prompts[preset.name]
        folder = Folder(
            follow.source, sealed, preset, prompts, self._plan.weights, follow.own_sample
        )
        if folder.is_served():
            folder.state = DONE
            self._on_finished(folder, self._claims[folder.source], is_new=False)
        self._folders[key] = folder

    def _is_busy(self, folder: Folder) -> bool:
        return any(order.folder is folder for order in self._orders.values())

    def _ordered(self) -> list[Folder]:
        """Folders that are not complete: the checkpoint that was sealed last comes first."""
        left = [one for one in self._folders.values() if one.state in (NEW, OPEN)]
        return sorted(left, key=lambda one: (-one.sealed.sealed_s, -one.sealed.step))

    def _ready(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.is_ready]

    def _check_limits(self) -> None:
        for slot in self._ready():
            order = self._orders.get(slot.order) if slot.order is not None else None
            if order is not None and time.monotonic() - order.sent_s > self._order_limit_s:
                why = f"a batch took more than {self._order_limit_s:g} s"
                slot.is_ready = False
                self._samplers.send(slot.node, slot.number, {"op": "end", "id": 0})
                self._lose(slot, why, counts=True)

    def _assign(self) -> None:
        idle = [slot for slot in self._ready() if slot.order is None]
        for slot in idle:
            if not self._give_work(slot):
                self._give_warmth(slot)

    def _give_work(self, slot: Slot) -> bool:
        now = time.monotonic()
        for folder in self._ordered():
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
        claims = self._claims[folder.source]
        with suppress(OSError):
            folder.drop_finished()
            for unit in folder.units:
                if unit.is_busy or unit.not_before_s > now:
                    continue
                if claims.take(folder.path, unit.name):
                    unit.is_busy = True
                    self._send(slot, "make", folder, unit)
                    return True
                unit.not_before_s = now + OTHERS_S
            if not folder.units and not folder.is_closing:
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
            self._number += 1
            slot.order = self._number
            self._orders[self._number] = Order("warm", None, None, time.monotonic())
            order = {"op": "warm", "id": self._number, "request": request}
            self._samplers.send(slot.node, slot.number, order)
            return

    def _send(self, slot: Slot, kind: str, folder: Folder, unit: Unit | None) -> None:
        self._number += 1
        order: dict[str, Any] = {"op": kind, "id": self._number, "request": folder.request()}
        if unit is not None:
            order |= {"first": unit.first, "end": unit.end, "files": list(unit.files)}
        if kind == "sheet" and folder.look is not None:
            order["files"] = [job["file"] for job in folder.look["jobs"]]
        slot.order = self._number
        slot.warmed.add(str(folder.source.folder))
        self._orders[self._number] = Order(kind, folder, unit, time.monotonic())
        self._samplers.send(slot.node, slot.number, order)

    def _give_back(self, folder: Folder, unit: str) -> None:
        with suppress(OSError):
            self._claims[folder.source].give_back(folder.path, unit)

    def _close(self, folder: Folder) -> None:
        """The last of a folder: its index, then what others are told."""
        try:
            folder.finish()
        except OSError as error:
            why = f"{folder.path} cannot be written: {error.strerror}"
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
