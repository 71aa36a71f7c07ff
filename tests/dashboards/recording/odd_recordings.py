"""Recordings that went wrong in every way: the same for the same seed."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboards.model.samples import Tick
from dashboards.recording.file_format import HISTORY, Appender
from dashboards.recording.writer import Writer
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from tests.dashboards.recording.rows import Row, read_rows, write_rows
from tests.dashboards.simulated_hour import hour

SECONDS = 34  # a key at the beginning and after 30 s
INCIDENTS = (
    Incident("gpu_lost", 1, 1, 5, 30),
    Incident("clock_step", 2, 0, 12, 30, size=2.5),
    Incident("node_dead", 2, 0, 18, 25),
)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 63, 64, 1e-300, 1e18, 1e308, -1e308, float("nan"), float("inf"), 2**60, 10**400,
    "", "x", "\x1b]0;owned\x07[/red]", "\ud800", "n[1-3]", [], {}, ["", ["", 1]], ["Gpu"], ["{}", 1], ["set", []],
    ["b", "x"], ["Ring", 0, 0, "e", [""], ["b", ""]], ["Restored", 1], ["Tick", 1.0], {"1": 2}, {"7": {"1": None}},
)  # fmt: skip


def good(path: Path) -> Path:
    """A small recording with a run, two sessions and alerts in it."""
    for begin_s in (1.79e9, 1.79e9 + 600):
        writer = Writer(Appender(path, 1 << 30), names(2), "hour", 1.0)
        for samples in hour(INCIDENTS, nodes=2, gpus=2, seconds=SECONDS, begin_s=begin_s):
            tick = samples[-1]
            assert isinstance(tick, Tick)
            writer.take(tick.now_s, samples[:-1])
        writer.close()
    return path


def odd(path: Path, count: int, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """(what was done, the file's bytes); `path` is a good recording."""
    data, rows = path.read_bytes(), read_rows(path)
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        how = chance.choice([_bytes, _columns, _order, _content, _content, _content, _content])
        yield f"{number} {how.__name__}", how(chance, data, list(rows))


def _bytes(chance: random.Random, data: bytes, _rows: list[Row]) -> bytes:
    """Bits that flip, parts that are gone, torn, or there twice."""
    text = bytearray(data)
    for _ in range(chance.choice([1, 3, 30])):
        at, size = chance.randrange(len(text)), chance.choice([1, 4, 100, 5000])
        match chance.randrange(4):
            case 0:
                text[at] ^= 1 << chance.randrange(8)
            case 1:
                del text[at : at + size]
            case 2:
                text[at:at] = text[at : at + size]
            case 3:
                text[at : at + size] = chance.randbytes(min(size, len(text) - at))
        if len(text) < 100:
            break
    return bytes(data[:100] + text[100:] if chance.random() < 0.8 else text)


def _columns(chance: random.Random, data: bytes, rows: list[Row]) -> bytes:
    """Rows of another kind, time, id or payload than they have."""
    odd: list[Any] = [0.0, -1.0, 1e300, float("inf"), 1.79e9 + 10, None, "x", b"", 2**62]
    odd += ["begin", "deep", "key", "nodes", "history", "run", "round"]
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with contextlib.closing(sqlite3.connect(file.name, isolation_level=None)) as db:
            for _ in range(chance.choice([1, 3, 10])):
                column = chance.choice(["id", "time_s", "time_s", "kind", "kind", "payload"])
                with contextlib.suppress(sqlite3.Error):  # no id, or one that is taken
                    db.execute(
                        f"UPDATE samples SET {column} = ? WHERE id = ?",  # noqa: S608 - our own names
                        (chance.choice(odd), chance.randrange(1, len(rows) + 1)),
                    )
        return Path(file.name).read_bytes()


def _packed(rows: list[Row]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_rows(Path(folder) / "odd.rec", rows).read_bytes()


def _order(chance: random.Random, _data: bytes, rows: list[Row]) -> bytes:
    """The rows in another order, some of them twice or not at all."""
    match chance.randrange(3):
        case 0:
            chance.shuffle(rows)
        case 1:
            rows = chance.choices(rows, k=len(rows))
        case 2:
            half = chance.randrange(len(rows))
            rows = rows[half:] + rows[:half]
    return _packed(rows)


def _content(chance: random.Random, _data: bytes, rows: list[Row]) -> bytes:
    """Another value in the text of a row whose checksum is right."""
    kind = chance.choice(sorted({kind for _, kind, _ in rows}))
    place = chance.choice([place for place, row in enumerate(rows) if row[1] == kind])
    at_s, _, text = rows[place]
    newline, history = b"", b""
    if kind == HISTORY:
        text, newline, history = text.partition(b"\n")
    value = json.loads(text)
    for _ in range(chance.choice([1, 1, 2, 5])):
        _change(chance, value)
    text = json.dumps(value).encode()
    if chance.random() < 0.03:
        text = text[:-1] + b"," + 5000 * b"[" + 5000 * b"]" + text[-1:]
    history = history[: chance.choice([len(history), len(history) // 2])]
    rows[place] = (at_s, kind, text + newline + history)
    return _packed(rows)


def _change(chance: random.Random, value: Any) -> None:
    """One place of the JSON, found by going down at random: odd, gone, twice, or as another place is."""
    holder, other = _holder(chance, value), _holder(chance, value)
    if holder is None or other is None:
        return
    (where, key), (there, its) = holder, other
    match chance.randrange(5):
        case 0 | 1:
            where[key] = copy.deepcopy(chance.choice(ODD))
        case 2:
            del where[key]
        case 3 if isinstance(where, list):
            where.insert(key, copy.deepcopy(where[key]))
        case _:
            where[key] = copy.deepcopy(there[its])


def _holder(chance: random.Random, value: Any) -> tuple[Any, Any] | None:
    """(list or dict, key) somewhere in the value."""
    found = None
    while isinstance(value, list | dict) and value:
        key = (
            chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        )
        found, value = (value, key), value[key]
        if chance.random() < 0.15:
            break
    return found
