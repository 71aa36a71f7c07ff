"""The samplers and what each of them does: nodes that come and go, orders and their deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from checks import units
from clusterctl.serve.events import Events
from clusterctl.serve.samplers import Message, Samplers
from clusterctl.serve.work import Folder, Unit

FAILURES = 3  # ends of a sampler in a row before it is ready; then its node counts as down
ORDER_S = 3600.0  # for one batch; then its sampler is ended
_ANSWERS = {"warm": "warm", "look": "look", "make": "made", "sheet": "sheet"}
_UNFIT = "the sampler's answer is not as it should be"


@dataclass
class Order:
    """What a sampler has been told to do; without a folder, to warm up."""

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
    order: tuple[int, Order] | None = None
    failures: int = 0
    warmed: set[str] = field(default_factory=set)  # runs whose encoders it has read

    def end_order(self) -> Order | None:
        ended, self.order = self.order, None
        return None if ended is None else ended[1]


@dataclass(frozen=True, slots=True)
class Lost:
    """An order that was not carried out; `counts` where it may be the fault of what was asked."""

    order: Order
    why: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a sampler to its order."""

    order: Order
    data: dict[str, Any]


class SamplerPool:
    """All samplers of all nodes. A context manager; leaving it ends them."""

    def __init__(self, samplers: Samplers, events: Events) -> None:
        self._samplers, self._events = samplers, events
        self._slots: dict[tuple[str, int], Slot] = {}
        self._down: dict[str, str] = {node.name: "" for node in samplers.cluster.nodes}
        self._number = 0

    def __enter__(self) -> SamplerPool:
        self._samplers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._samplers.__exit__()

    @property
    def ready(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.is_ready]

    @property
    def orders(self) -> list[Order]:
        return [slot.order[1] for slot in self._slots.values() if slot.order is not None]

    @property
    def is_any_down(self) -> bool:
        return any(self._down.values())

    @property
    def is_all_down(self) -> bool:
        return all(self._down.values())

    def send(
        self,
        slot: Slot,
        kind: str,
        request: dict[str, Any],
        folder: Folder | None = None,
        unit: Unit | None = None,
        **more: Any,
    ) -> None:
        self._number += 1
        slot.order = self._number, Order(kind, folder, unit, time.monotonic())
        order = {"op": kind, "id": self._number, "request": request, **more}
        self._samplers.send(slot.node, slot.number, order)

    def take(self, seconds: float) -> Iterator[Answer | Lost]:
        """What arrives within so many seconds."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            for message in self._samplers.inbox.take(left_s)[0]:
                yield from self._take(message)
        yield from self._late()

    def _take(self, message: Message) -> Iterator[Answer | Lost]:
        node, slot = message.node, self._slots.get((message.node, message.slot))
        if message.kind == "up":
            self._events.node_up(node, self._down[node])
            self._down[node] = ""
            for number in range(message.data["slots"]):
                self._slots[node, number] = Slot(node, number)
        elif message.kind == "down":
            self._events.node_down(node, message.why)
            self._down[node] = message.why
            for one in [one for one in self._slots.values() if one.node == node]:
                del self._slots[one.node, one.number]
                yield from _lost(one, message.why, counts=False)
        elif slot is None:
            return
        elif message.kind == "answer":
            yield from self._answer(slot, message.data)
        elif message.kind == "sent":
            yield from _lost(slot, message.why, counts=True)
        elif message.kind == "ended":
            self._events.sampler_ended(node, message.slot, message.why)
            slot.is_ready = False
            slot.warmed.clear()
            slot.failures += 1
            of_node = [one for one in self._slots.values() if one.node == node]
            if all(one.failures >= FAILURES for one in of_node):
                self._down[node] = message.why
            yield from _lost(slot, message.why, counts=True)

    def _answer(self, slot: Slot, data: dict[str, Any]) -> Iterator[Answer | Lost]:
        if "ready" in data:
            slot.is_ready, slot.failures = True, 0
            self._down[slot.node] = ""
            self._events.ready(slot.node, slot.number, data["ready"])
        elif slot.order is not None and slot.order[0] == data["id"]:
            _, order = slot.order
            if "begun" not in data:
                slot.end_order()
            is_fitting = {"begun", "error", _ANSWERS[order.kind]} & data.keys()
            yield Answer(order, data) if is_fitting else Lost(order, _UNFIT, True)

    def _late(self) -> Iterator[Lost]:
        for slot in self.ready:
            if slot.order is not None and time.monotonic() - slot.order[1].sent_s > ORDER_S:
                slot.is_ready = False
                self._samplers.send(slot.node, slot.number, {"op": "end", "id": 0})
                yield from _lost(
                    slot, f"a batch took more than {units.duration(ORDER_S)}", counts=True
                )


def _lost(slot: Slot, why: str, *, counts: bool) -> Iterator[Lost]:
    if (order := slot.end_order()) is not None:
        yield Lost(order, why, counts)
