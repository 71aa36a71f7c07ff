"""Recordings that went wrong in every way: the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboards.model.samples import Tick
from dashboards.recording.file_format import MAGIC, Appender, Block, blocks, pack, section
from dashboards.recording.writer import Writer
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from dashboards.simulation.hour import hour

SECONDS = 34  # a key block stands at its beginning and after 30 s
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
    data = path.read_bytes()
    found = list(blocks(path))
    with path.open("rb") as file:
        sections = [[section(file, block, number) or b"" for number in range(3)] for block in found]
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        how = chance.choice([_bytes, _header, _order, _content, _content, _content, _content])
        yield f"{number} {how.__name__}", how(chance, data, found, sections)


def _bytes(chance: random.Random, data: bytes, _found: Any, _sections: Any) -> bytes:
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
    return bytes(MAGIC + text[len(MAGIC) :] if chance.random() < 0.8 else text)


def _header(chance: random.Random, data: bytes, found: list[Block], _sections: Any) -> bytes:
    """A block that says another kind, length or time than it has."""
    text = bytearray(data)
    at = chance.choice(found).at
    form, back = chance.choice([("<d", 8), ("<d", 16), ("<I", 20), ("<I", 24), ("<I", 28), ("<I", 32), ("<c", 33)])  # fmt: skip
    value: Any = chance.choice([0, 1, 1 << 31, 0xFFFFFFFF])
    if form == "<d":
        value = chance.choice([0.0, -1.0, 1e300, float("nan"), float("inf"), 1.79e9 + 10])
    if form == "<c":
        value = chance.choice([b"k", b"K", b"r", b"x"])
    struct.pack_into(form, text, at - back, value)
    return bytes(text)


def _order(chance: random.Random, data: bytes, found: list[Block], _sections: Any) -> bytes:
    """The blocks in another order, some of them twice or not at all."""
    begins = [block.at - 37 for block in found]
    pieces = [data[a:b] for a, b in zip(begins, [*begins[1:], len(data)], strict=True)]
    match chance.randrange(3):
        case 0:
            chance.shuffle(pieces)
        case 1:
            pieces = chance.choices(pieces, k=len(pieces))
        case 2:
            half = chance.randrange(len(pieces))
            pieces = pieces[half:] + pieces[:half]
    return MAGIC + b"".join(pieces)


def _content(
    chance: random.Random, data: bytes, found: list[Block], sections: list[list[bytes]]
) -> bytes:
    """Another value in the text of a block whose checksum is right."""
    place = chance.randrange(len(found))
    block, texts = found[place], list(sections[place])
    number = chance.choice([0, 0, 1, 1, 2]) if block.is_key else chance.choice([0, 1, 1])
    head, newline, rows = (texts[number], b"", b"")
    if number == 2:
        head, newline, rows = texts[2].partition(b"\n")
    value = json.loads(head)
    for _ in range(chance.choice([1, 1, 2, 5])):
        _change(chance, value)
    text = json.dumps(value).encode()
    if chance.random() < 0.03:
        text = text[:-1] + b"," + 5000 * b"[" + 5000 * b"]" + text[-1:]
    texts[number] = text + newline + rows[: chance.choice([len(rows), len(rows) // 2])]
    new = pack(block.kind, texts, block.first_s, block.last_s)
    return data[: block.at - 37] + new + data[block.at + sum(block.lengths) :]


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
