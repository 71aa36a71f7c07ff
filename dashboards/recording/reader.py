"""Reads a recording: the state at any time, and the rounds after it.

Opening reads the index only. A state is made of the last key before its time, of the rows of
history in the keys of the hour before, and of the rounds since that key. The file may come from
anywhere: a row with unexpected content counts as damaged, and `damage` reports it.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.node_name import node_names
from dashboards.model.ring_buffer import FLEET_COLUMNS, LAYOUT, Ring
from dashboards.model.samples import NodeReport, NodeSample, RunReport, Sample, Tick
from dashboards.model.state import HISTORY_S, NodeState, RunState, State, new_node
from dashboards.recording import codec, file_format, validation
from dashboards.reduce import fold
from trainer.runlog.json_file import parse_object

HALF_BYTES = 2
CACHED_HISTORIES = 160  # of an hour and a bit, unpacked

# What reading an unexpected text may raise.
_BROKEN: tuple[type[Exception], ...] = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(struct.error, sqlite3.Error),
)

Round = tuple[float, list[Sample]]
Fields = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class Place:
    """Where in the recording one is, with what the next difference changes."""

    row: int  # id of the next
    known: dict[str, tuple[NodeSample, Any]] = field(default_factory=dict)
    unpacker: file_format.Unpacker = field(default_factory=file_format.Unpacker)
    next_round: Round | None = None
    fields: Fields = field(default_factory=lambda: codec.FIELDS)  # the file's, if not ours
    broken: bool = False  # a damaged row: nothing can be known before the next key


class Recorded:
    """A recording opened for reading. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`; `UsageError` for a file that is no recording or holds no key."""
        self.path = path
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file")  # a pipe would be waited for
        self._db = file_format.open_read_only(path)
        rows, self._gaps = file_format.list_rows(self._db, path.stat().st_size)
        self._keys = [row for row in rows if row.kind in file_format.KEYS]
        if not self._keys:
            self._db.close()
            state = "is damaged: no part of it" if self._gaps else "holds no samples that"
            raise UsageError(f"{path} {state} can be read")
        self.key_count, self._last_id = len(self._keys), rows[-1].id
        self._stretches = file_format.stretches(rows)
        self.first_s = min(key.time_s for key in self._keys)
        self.last_s = max(row.time_s for row in rows)
        self._damaged: set[int] = set()  # ids of rows, as they are found
        self._history_of = functools.lru_cache(CACHED_HISTORIES)(self._read_history)
        self.nodes: tuple[str, ...] = ()
        with contextlib.suppress(*_BROKEN):
            names = list(self._read(self._keys[0].id + 1, file_format.NODES))
            self.nodes = node_names(names, len(names))

    def close(self) -> None:
        self._db.close()

    @property
    def damage(self) -> str:
        """What of the file could not be read so far, as a sentence; "" nothing."""
        lost = "parts of this recording are damaged and left out; what they held is unknown"
        return f"{self.path}: {lost}" if self._damaged or self._gaps else ""

    def _text(self, id_: int, kind: str) -> bytes:
        """Of the first row of its kind after its key. Raises `ValueError`, `sqlite3.Error`."""
        query = "SELECT payload FROM samples WHERE id = ? AND kind = ?"
        found = self._db.execute(query, (id_, kind)).fetchone()
        return file_format.Unpacker().unpack(kind, found and found[0])

    def _read(self, id_: int, kind: str) -> Any:
        return file_format.from_json(self._text(id_, kind))

    def state_at(self, at_s: float) -> tuple[State, Place]:
        """The state then, and the place behind it. Before the beginning: the beginning.

        Raises `UsageError` when no key before it can be read.
        """
        for number in self._before(at_s):
            found = self.at_key(number)
            if found is not None:
                state, place = found
                with contextlib.suppress(*_BROKEN):
                    for now_s, samples in self.rounds(place, at_s):
                        state = fold(state, [*samples, Tick(now_s)])
                    return state, place
        raise UsageError(f"{self.path}: nothing before that time can be read")

    def _before(self, at_s: float) -> list[int]:
        """Numbers of keys to begin from, best first: where sessions overlap, of the later one."""

        def rank(number: int) -> tuple[int, float]:
            stretch, end_s = self._stretches[number]
            return stretch if at_s <= end_s else -1, self._keys[number].time_s

        at_s = max(at_s, self.first_s)
        numbers = [number for number, key in enumerate(self._keys) if key.time_s <= at_s]
        return sorted(numbers, key=rank, reverse=True)

    def at_key(self, number: int) -> tuple[State, Place] | None:
        """The state as that key has it, and the place behind it; None where it is damaged."""
        with contextlib.suppress(*_BROKEN):
            return self._at_key(number)
        self._damaged.add(self._keys[number].id)
        return None

    def key_behind(self, place: Place) -> int:
        """In the file's order: the number of the next key; `key_count` at the end."""
        return bisect.bisect_left(self._keys, place.row, key=lambda key: key.id)

    def key_after(self, at_s: float) -> float | None:
        """In time: when the next key is that is not known to be damaged; None at the end."""
        good = (key.time_s for key in self._keys if key.id not in self._damaged)
        return min((time_s for time_s in good if time_s > at_s), default=None)

    def _at_key(self, number: int) -> tuple[State, Place]:
        key = self._keys[number]
        about, parts_of = self._read(key.id, key.kind), self._read(key.id + 1, file_format.NODES)
        names_of = _fields(about)
        nodes, known = {}, {}
        values: dict[str, Any] = {"now_s": validation.checked_time(about["now_s"])}
        for name, value in about["state"].items():
            # A part of another version is left out rather than the whole.
            with contextlib.suppress(*_BROKEN):
                values[name] = validation.checked(State, name, codec.decode(value, names_of))
        state = State(**values)
        limit = -(-int(HISTORY_S) // max(1, int(state.history_step_s)))
        rings = self._rings(number, limit)
        for name, parts in parts_of.items():
            validation.checked(NodeState, "name", name)
            given = {
                key: validation.checked(NodeState, key, codec.decode(value, names_of))
                for key, value in parts.items()
                if key in NodeState.__dataclass_fields__
            }
            history = rings.get(name, new_node(name, limit).history)
            node = nodes[name] = NodeState(name, history=history, **given)
            if node.sample is not None:
                known[name] = (node.sample, parts["sample"])
        run = self._run_at(number, about, names_of)
        fleet = rings.get("", Ring(len(FLEET_COLUMNS), limit))
        is_ours = codec.FIELDS.items() <= names_of.items()
        place = Place(key.id + 3, known, fields=codec.FIELDS if is_ours else names_of)
        return replace(state, nodes=nodes, run=run, fleet=fleet), place

    def _run_at(self, number: int, about: dict[str, Any], names_of: Any) -> RunState | None:
        """The run as the last key that holds it knows it, and what it reported since."""
        first = number
        while first > 0 and self._keys[first].kind == file_format.KEY:
            first -= 1
        key = self._keys[first]
        try:
            deep = about if first == number else self._read(key.id, key.kind)
            run = validation.checked(State, "run", codec.decode(deep["run"], _fields(deep)))
        except _BROKEN:
            if first == number:
                raise
            self._damaged.add(key.id)
            return None
        state, unpacker = State(now_s=0.0, run=run), file_format.Unpacker()
        query = "SELECT id, kind, payload FROM samples WHERE id > ? AND id < ? AND kind IN (?, ?)"
        wanted = (key.id, self._keys[number].id, file_format.RUN, file_format.KEY)
        for id_, kind, payload in self._db.execute(query, wanted):
            try:
                text = unpacker.unpack(kind, payload)
                if kind == file_format.RUN:
                    state = fold(state, _of_run(text, names_of))
            except _BROKEN:
                self._damaged.add(id_)
        return state.run

    def _rings(self, number: int, limit: int) -> dict[str, Ring]:
        """History at a key: rows of the keys of the hour before it, back to the session's start."""
        key_s = self._keys[number].time_s
        pieces: list[dict[str, tuple[int, bytes]]] = []
        for before in range(number, -1, -1):
            if not 0 <= key_s - self._keys[before].time_s <= HISTORY_S + 60:
                break
            try:
                rows, is_whole = self._history_of(before)
            except _BROKEN:
                self._damaged.add(self._keys[before].id)
                break
            pieces.insert(0, rows)
            if is_whole:
                break
        names = pieces[-1] if pieces else {}
        return {
            name: Ring.from_bytes([p[name] for p in pieces if name in p], limit, names[name][0])
            for name in names
        }

    def _read_history(self, number: int) -> tuple[dict[str, tuple[int, bytes]], bool]:
        """({ring: (width, packed rows)}, whether it holds all that was there) of one key."""
        line, _, data = self._text(self._keys[number].id + 2, file_format.HISTORY).partition(b"\n")
        about = parse_object(line)
        if about.get("columns") != LAYOUT:
            return {}, True  # of another version: its history is left out, its readings are good
        rows, at = {}, 0
        for name, (width, count) in about["rows"].items():
            size = HALF_BYTES * width * count
            if not (0 < width <= validation.MOST_COLUMNS and count >= 0 and at + size <= len(data)):
                raise ValueError("rows that are not there")
            rows[name] = (width, data[at : at + size])
            at += size
        return rows, bool(about["whole"])

    def next_time(self, place: Place) -> float | None:
        """When the next round was; None where none follows: a session ends, or a row is damaged."""
        if place.next_round is None and not place.broken:
            try:
                place.next_round = self._next_round(place)
            except _BROKEN:
                self._damaged.add(place.row)
                place.row, place.broken = place.row + 1, True
        return None if place.next_round is None else place.next_round[0]

    def rounds(self, place: Place, until_s: float = math.inf) -> Iterator[Round]:
        """(time, samples) of rounds in order, up to a time or the end of the session."""
        while (next_s := self.next_time(place)) is not None and next_s <= until_s:
            found, place.next_round = place.next_round, None
            assert found is not None
            yield found

    def _next_round(self, place: Place) -> Round | None:
        samples: list[Sample] = []
        query = "SELECT id, time_s, kind, payload FROM samples WHERE id BETWEEN ? AND ? ORDER BY id"
        for id_, time_s, kind, payload in self._db.execute(query, (place.row, self._last_id)):
            if id_ != place.row:
                raise ValueError("a row is missing")
            if kind == file_format.BEGIN:
                return None
            text = place.unpacker.unpack(kind, payload)
            if kind == file_format.RUN:
                samples += _of_run(text, place.fields)
            elif kind == file_format.ROUND:
                samples += self._of_nodes(place, file_format.from_json(text))
                place.row += 1
                return validation.checked_time(time_s), samples
            place.row += 1
        return None

    def _of_nodes(self, place: Place, reported: Any) -> Iterator[Sample]:
        for name, new in reported:
            if type(new) is not dict:
                plain, sample = new, codec.decode(new, place.fields)
            else:
                before, old = place.known[name]
                plain = codec.changed(old, new)
                if place.fields is codec.FIELDS:
                    sample = codec.decode_like(new, before, plain)
                else:
                    sample = codec.decode(plain, place.fields)
            if not isinstance(sample, NodeReport) or sample.node != name:
                raise ValueError("no reading of that node")
            if isinstance(sample, NodeSample):
                place.known[name] = (sample, plain)
            yield sample


def _fields(about: dict[str, Any]) -> Fields:
    return {name: tuple(names) for name, names in about["fields"].items()}


def _of_run(text: bytes, names_of: Fields) -> list[RunReport]:
    samples = [codec.decode(one, names_of) for one in file_format.from_json(text)]
    if not all(isinstance(sample, RunReport) for sample in samples):
        raise ValueError("nothing that a run reports")
    return samples
