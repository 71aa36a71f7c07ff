"""A recording that is read: the state at any time, and what was said from there on.

Opening reads headers only. A state is made of the last key block before its time, of the rows of
history that key blocks of the hour before carry, and of the rounds since that key. The file may come
from anywhere: a block that holds something else than ours counts as damaged, and `damage` says so.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from dashboards.model.history_columns import FLEET_COLUMNS, LAYOUT, NODE_COLUMNS
from dashboards.model.ring_buffer import Ring
from dashboards.model.samples import (
    EventSample,
    NodeDown,
    NodeSample,
    RunOpened,
    Sample,
    StepSample,
    Tick,
)
from dashboards.model.state import HISTORY_S, NodeState, RunState, State, fold
from dashboards.recording import codec as plain
from dashboards.recording import fields as limits
from dashboards.recording.file_format import (
    DEEP,
    LATEST_S,
    ROUNDS,
    blocks,
    gaps,
    is_recording,
    older,
    section,
)

HALF_BYTES = 2
KEPT_SECTIONS = 160  # history of an hour and a bit, unpacked
MOST_PARTS = 4 << 20  # lists and objects of one section; each costs 60 bytes of memory and more

# What reading text that is none of ours may raise.
_BROKEN = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)


@dataclass(slots=True)
class Place:
    """Where in the recording one is, with what the next change changes."""

    block: int
    round: int = 0  # of that block, the next to be read
    known: dict[str, tuple[NodeSample, Any]] = field(default_factory=dict)
    rounds: list[tuple[float, list[Sample]]] | None = None  # of that block
    fields: Mapping[str, Sequence[str]] | None = None  # the file's, where they are not ours
    broken: bool = False  # a damaged block: nothing can be known before the next key


class Recorded:
    """A recording opened for reading. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`; `UsageError` for a file that holds no whole block."""
        self.path = path
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file")  # a pipe would be waited for
        if not is_recording(path):
            raise UsageError(f"{path} is no recording of clusterctl top")
        paths = [p for p in (older(path), path) if p.exists()]
        self.blocks = [block for p in paths for block in blocks(p)]
        self._keys = [index for index, block in enumerate(self.blocks) if block.is_key]
        if not self._keys:
            raise UsageError(f"{path} is a recording that holds nothing yet")
        self._key_times = [self.blocks[index].first_s for index in self._keys]
        self._stretches = self._in_order()
        self.first_s = min(self._key_times)
        self.last_s = max(block.last_s for block in self.blocks)
        self._gaps = gaps(self.blocks)
        self._damaged: set[int] = set()  # blocks, as they are found
        self._files = {p: p.open("rb") for p in paths}
        self._history: OrderedDict[int, tuple[dict[str, tuple[int, bytes]], bool]] = OrderedDict()
        names = self._read(self._keys[0], 1)
        self.nodes = tuple(names) if type(names) is dict else ()

    def _in_order(self) -> list[tuple[int, float]]:
        """For each key (stretch, its end): within a stretch of the file time does not go back.

        It does where a session followed another one after the clock was set back.
        """
        number, ends = 0, [-1.0]
        of_keys: list[int] = []
        for block in self.blocks:
            if block.is_key:
                if block.first_s < ends[-1]:
                    number += 1
                    ends.append(-1.0)
                of_keys.append(number)
            ends[-1] = max(ends[-1], block.last_s)
        return [(stretch, ends[stretch]) for stretch in of_keys]

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def damage(self) -> str:
        """What of the file could not be read so far, as a sentence; "" nothing."""
        count = len(self._damaged) + self._gaps
        if not count:
            return ""
        return f"{self.path}: parts of this recording are damaged and left out; what they held is not known"

    def _read(self, index: int, number: int) -> Any:
        """A section's JSON; None when its block is damaged."""
        block = self.blocks[index]
        text = section(self._files[block.path], block, number)
        if text is not None and text.count(b"[") + text.count(b"{") <= MOST_PARTS:
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(text)
        self._damaged.add(index)
        return None

    def state_at(self, at_s: float) -> tuple[State, Place]:
        """The state then, and the place behind it. Before the beginning: the beginning.

        Raises `UsageError` when no key block before it can be read.
        """
        for number in self._before(at_s):
            found = self.at_key(number)
            if found is not None:
                with contextlib.suppress(*_BROKEN):
                    return self._forward(*found, at_s)
        raise UsageError(f"{self.path}: no block of it before that time can be read")

    def _before(self, at_s: float) -> list[int]:
        """Numbers of keys to begin from, best first: where sessions overlap, of the later one."""

        def rank(number: int) -> tuple[int, float]:
            stretch, end_s = self._stretches[number]
            return stretch if at_s <= end_s else -1, self._key_times[number]

        at_s = max(at_s, self.first_s)
        numbers = [number for number, key_s in enumerate(self._key_times) if key_s <= at_s]
        return sorted(numbers, key=rank, reverse=True)

    def at_key(self, number: int) -> tuple[State, Place] | None:
        """The state as that key block has it, and the place behind it; None where it is damaged."""
        with contextlib.suppress(*_BROKEN):
            return self._at_key(number)
        self._damaged.add(self._keys[number])
        return None

    def key_behind(self, place: Place) -> int | None:
        """In the file's order: the number of the next key; None at the end."""
        return next((n for n, index in enumerate(self._keys) if index >= place.block), None)

    def key_number_after(self, number: int) -> int | None:
        return number + 1 if number + 1 < len(self._keys) else None

    def key_after(self, at_s: float) -> float | None:
        """In time: when the next key is that is not known to be damaged; None at the end."""
        times = zip(self._keys, self._key_times, strict=True)
        return min(
            (s for index, s in times if s > at_s and index not in self._damaged), default=None
        )

    def _at_key(self, number: int) -> tuple[State, Place]:
        index = self._keys[number]
        about, said = self._read(index, 0), self._read(index, 1)
        if about is None or said is None:
            raise ValueError("a damaged block")
        fields = {name: tuple(names) for name, names in about["fields"].items()}
        nodes, known = {}, {}
        state = State(now_s=_time(about["now_s"]))
        values = {}
        for name, value in about["state"].items():
            if name in State.__dataclass_fields__:
                # A part of another version is left out rather than the whole.
                with contextlib.suppress(*_BROKEN):
                    values[name] = _part(State, name, plain.decode(value, fields))
        state = replace(state, **values)
        limit = -(-int(HISTORY_S) // max(1, int(state.history_step_s)))
        rings = self._rings(number, limit)
        for name, parts in said.items():
            given = {
                key: _part(NodeState, key, plain.decode(value, fields))
                for key, value in parts.items()
                if key in NodeState.__dataclass_fields__
            }
            empty = Ring(len(NODE_COLUMNS), limit)
            nodes[name] = NodeState(name, history=rings.get(name, empty), **given)
            sample = nodes[name].sample
            if sample is not None:
                known[name] = (sample, parts["sample"])
        run = self._run_at(number, about, fields)
        fleet = rings.get("", Ring(len(FLEET_COLUMNS), limit))
        place = Place(index + 1, 0, known, fields=None if fields == plain.FIELDS else fields)
        return replace(state, nodes=nodes, run=run, fleet=fleet), place

    def _run_at(self, number: int, about: dict[str, Any], fields: Any) -> RunState | None:
        """The run as the last deep key knows it, and what it said since."""
        first = number
        while first > 0 and self.blocks[self._keys[first]].kind != DEEP:
            first -= 1
        deep = about if first == number else self._read(self._keys[first], 0)
        if deep is None or "run" not in deep:
            return None
        deep_fields = {name: tuple(names) for name, names in deep["fields"].items()}
        run = _part(State, "run", plain.decode(deep["run"], deep_fields))
        state = State(now_s=0.0, run=run)
        for index in range(self._keys[first] + 1, self._keys[number]):
            if self.blocks[index].kind == ROUNDS:
                for _, of_run in self._read(index, 0) or ():
                    state = fold(state, [_of_run(plain.decode(one, fields)) for one in of_run])
        return state.run

    def _rings(self, number: int, limit: int) -> dict[str, Ring]:
        """History at a key: rows of all keys of the hour before it, back to where a session began."""
        key_s = self._key_times[number]
        pieces: list[dict[str, tuple[int, bytes]]] = []
        for before in range(number, -1, -1):
            if not 0 <= key_s - self._key_times[before] <= HISTORY_S + 60:
                break
            rows = self._history_of(before)
            if rows is None:
                break
            pieces.append(rows[0])
            if rows[1]:
                break
        pieces.reverse()
        names = pieces[-1] if pieces else {}
        return {
            name: Ring.from_bytes([p[name] for p in pieces if name in p], limit, names[name][0])
            for name in names
        }

    def _history_of(self, number: int) -> tuple[dict[str, tuple[int, bytes]], bool] | None:
        """({ring: (width, packed rows)}, whether it holds all that was there) of one key."""
        if number in self._history:
            self._history.move_to_end(number)
            return self._history[number]
        block = self.blocks[self._keys[number]]
        text = section(self._files[block.path], block, 2)
        if text is None:
            return None
        line, _, data = text.partition(b"\n")
        rows: dict[str, tuple[int, bytes]] = {}
        about = json.loads(line)
        if about.get("columns") != LAYOUT:
            return None  # of another version: its history is left out, its readings are good
        at = 0
        for name, (width, count) in about["rows"].items():
            size = HALF_BYTES * width * count
            if not (0 < width <= limits.MOST_COLUMNS and count >= 0 and at + size <= len(data)):
                raise ValueError("rows that are not there")
            rows[name] = (width, data[at : at + size])
            at += size
        found = self._history[number] = (rows, bool(about["whole"]))
        while len(self._history) > KEPT_SECTIONS:
            self._history.popitem(last=False)
        return found

    def _forward(self, state: State, place: Place, at_s: float) -> tuple[State, Place]:
        while (next_s := self.next_time(place)) is not None and next_s <= at_s:
            round_ = self.read_round(place)
            if round_ is None:
                break
            state = fold(state, [*round_[1], Tick(round_[0])])
        return state, place

    def next_time(self, place: Place) -> float | None:
        """When the next round was; None where none follows: a session ends, or a block is damaged."""
        if not self._settle(place):
            return None
        assert place.rounds is not None
        return place.rounds[place.round][0]

    def read_round(self, place: Place) -> tuple[float, list[Sample]] | None:
        """(time, samples) of the next round, in order; None at the end, or where a session ends."""
        if not self._settle(place):
            return None
        assert place.rounds is not None
        found = place.rounds[place.round]
        place.round += 1
        return found

    def _settle(self, place: Place) -> bool:
        """Bring a place to a round that is there; False where none follows."""
        if place.broken:
            return False
        while place.rounds is None or place.round >= len(place.rounds):
            if place.rounds is not None:
                place.block, place.round, place.rounds = place.block + 1, 0, None
            if place.block >= len(self.blocks):
                return False
            block = self.blocks[place.block]
            if block.is_key:
                about = self._read(place.block, 0) if block.kind == DEEP else {}
                if type(about) is not dict or about.get("begins"):
                    return False
                place.block += 1
                continue
            try:
                place.rounds = list(self._rounds(place))
            except _BROKEN:
                self._damaged.add(place.block)
                place.block, place.rounds, place.broken = place.block + 1, None, True
                return False
        return True

    def _rounds(self, place: Place) -> Iterator[tuple[float, list[Sample]]]:
        run, nodes = self._read(place.block, 0), self._read(place.block, 1)
        if run is None or nodes is None:
            raise ValueError("a damaged block")
        fields = plain.FIELDS if place.fields is None else place.fields
        for (now_s, of_run), of_nodes in zip(run, nodes, strict=True):
            samples: list[Sample] = [_of_run(plain.decode(one, fields)) for one in of_run]
            for name, said in of_nodes:
                new = said
                if type(said) is not dict:
                    sample = plain.decode(said, fields)
                else:
                    before, old = place.known[name]
                    new = plain.changed(old, said)
                    ours = place.fields is None
                    sample = (
                        plain.decode_like(said, before, new) if ours else plain.decode(new, fields)
                    )
                if not isinstance(sample, NodeSample | NodeDown) or sample.node != name:
                    raise ValueError("no reading of that node")
                if isinstance(sample, NodeSample):
                    place.known[name] = (sample, new)
                samples.append(sample)
            yield _time(now_s), samples


def _part(kind: type[Any], name: str, value: Any) -> Any:
    if not limits.fits(kind, name, value):
        raise ValueError(f"{name} cannot be that")
    return value


def _of_run(value: Any) -> Sample:
    if isinstance(value, RunOpened | StepSample | EventSample):
        return value
    raise ValueError("nothing that a run says")


def _time(value: Any) -> float:
    if type(value) not in (float, int) or not 0.0 <= value <= LATEST_S:
        raise ValueError("no time")
    return float(value)
