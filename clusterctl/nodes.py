"""Nodes: which machines a command is about, in the hostfile's order, and names as one word. Pure.

Names are never parsed to be shown: `fold` knows letters and numbers, and no syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from clusterctl.errors import HostfileError
from clusterctl.node_name import NodeName, first_bad_name, is_node_name, why_bad_name
from clusterctl.node_sets import MAX_DIGITS, expand

K = TypeVar("K")
V = TypeVar("V")

FOLDED_AXES = 4  # the last numbers of a name that are folded
_NUMBERS = re.compile(r"(\d+)", re.ASCII)
_FOLDABLE = re.compile(r"[\w.:-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. The transport takes from ssh_config what is None here.

    Raises `ValueError` for what cannot be the name of a node.
    """

    name: NodeName
    host: str | None = None
    port: int | None = None
    user: str | None = None
    slots: int | None = None
    identity: str | None = None
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not is_node_name(self.name):
            raise ValueError(why_bad_name(self.name))

    @property
    def address(self) -> str:
        """The host for ssh to connect to, which ssh_config may change."""
        return self.host or self.name


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def fold(names: Iterable[str]) -> str:
    """Names as one short node set: n1, n2, n3 become n[1-3].

    A name is never read as anything but letters and numbers, and costs the same whatever is in it.
    What cannot be in a set stands there as it is.
    """
    names = list(dict.fromkeys(names))
    if len(names) <= 1:
        return "".join(names)
    shapes = grouped((_shape(name), name) for name in names)
    return ",".join(text for shape, alike in shapes.items() for text in _folded(shape, alike))


def _shape(name: str) -> tuple[str, ...]:
    """What is around the numbers of a name that are folded: ("rack", "-n", "")."""
    if not _FOLDABLE.fullmatch(name):
        return (name,)
    pieces = _NUMBERS.split(name)
    if len(pieces) > 2 * FOLDED_AXES + 1:
        keep = len(pieces) - 2 * FOLDED_AXES
        pieces = ["".join(pieces[:keep]), *pieces[keep:]]
    return (
        (name,) if any(len(digits) > MAX_DIGITS for digits in pieces[1::2]) else tuple(pieces[::2])
    )


def _folded(shape: tuple[str, ...], names: Sequence[str]) -> list[str]:
    """Names of one shape as sets, one axis after another, the last one first."""
    axes = len(shape) - 1
    rows = [tuple(_NUMBERS.findall(name)[-axes:]) if axes else () for name in names]
    for axis in reversed(range(axes)):
        lines = grouped(((row[:axis], row[axis + 1 :]), row[axis]) for row in rows)
        rows = [
            (*before, text, *behind)
            for (before, behind), numbers in lines.items()
            for text in _ranges(numbers)
        ]
    return [
        "".join(one for pair in zip(shape, (*row, ""), strict=True) for one in pair) for row in rows
    ]


def _ranges(numbers: Sequence[str]) -> list[str]:
    """`7` or `[1-3,7]` of numbers; those with leading zeros are sets of their own."""
    padded = {len(text) for text in numbers if text[0] == "0" and len(text) > 1}
    widths = grouped((len(text) if len(text) in padded else 0, int(text)) for text in numbers)
    return [_one_width(sorted(values), width) for width, values in widths.items()]


def _one_width(values: Sequence[int], width: int) -> str:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    texts = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
        for low, high in runs
    ]
    return texts[0] if len(values) == 1 else f"[{','.join(texts)}]"


def is_loopback(node: Node) -> bool:
    """Whether the hostfile's address is this machine itself, as far as the text tells."""
    address = node.address
    return address == "localhost" or address.startswith("127.") or address == "::1"


def select(
    nodes: Sequence[Node], only: str | None = None, without: str | None = None, option: str = "-w"
) -> list[Node]:
    """Nodes kept by `-w only` (or another `option`) and `-x without`. Raises `HostfileError`, also
    when none is left."""
    known = {node.name for node in nodes}
    kept = list(nodes)
    for flag, text in ((option, only), ("-x", without)):
        if not text:
            continue
        names = set(expand(text, flag))
        if strangers := names - known:
            raise _strangers(flag, text, sorted(strangers), known)
        kept = [node for node in kept if (node.name in names) == (flag != "-x")]
    if not kept:
        raise HostfileError("-w and -x leave no node")
    return kept


def _strangers(flag: str, text: str, names: Sequence[str], known: set[str]) -> HostfileError:
    hint = "clusterctl nodes lists what is"
    full = [name for name in known if name.partition(".")[0] in names]
    if digits := re.search(r"\[(\d{2,9})\]", text):  # as a shell reads it: one of these characters
        first, last, all_of = digits[1][0], digits[1][-1], list(digits[1])
        is_run = len(all_of) == 1 + int(last) - int(first) and all_of == sorted(set(all_of))
        meant = f"[{first}-{last}]" if is_run else f"[{','.join(all_of)}]"
        hint = f"[{digits[1]}] is the number {digits[1]}; write {meant} for {' and '.join(all_of)}"
    elif full:
        hint = f"the hostfile has the full name {min(full)}"
    elif why := first_bad_name(names):
        hint = f"{why}; a set is written n[1-3,7]"
    return HostfileError(f"{flag}: {fold(names)} is not in the hostfile", hint=hint)
