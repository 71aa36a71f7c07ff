"""JSON as lines that a person can compare: a path, the types found there, and values that stay the same.

    .nodes[].name           string   "n1" | "n2"
    .nodes[].seconds        number
    .nodes[].unreachable ?  null | object

`[]` is any element of a list, `{}` any value of an object whose keys are data, `?` a key that not every
object has. Numbers that are times, and what a case names as volatile, have a type only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST = 6  # values of a path that are written out
LONG = 120  # characters of one value

# Numbers that are another each time: times, durations, ages, process ids.
VOLATILE = re.compile(r"\.(?:\w+_s|seconds|energy_kwh|pid|ppid)$")
# Objects whose keys are data: pairs of GPUs, names of nodes, paths.
DATA_KEYS = re.compile(r".*\.(?:pairs|weight_files|sizes|spreads|reasons|examples|dtypes|example)")


@dataclass
class Place:
    """What was found at one path."""

    types: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    seen: int = 0
    parent: str = ""


class Outline:
    """Documents of one kind, folded into a line for each path."""

    def __init__(
        self, say: Callable[[str], str], volatile: Sequence[str] = (), data_keys: Sequence[str] = ()
    ) -> None:
        self._say = say
        self._volatile = [re.compile(pattern) for pattern in volatile]
        self._data_keys = [re.compile(pattern) for pattern in data_keys]
        self._places: dict[str, Place] = {}
        self._objects: dict[str, int] = {}

    def add(self, value: Any, path: str = "", parent: str = "") -> None:
        place = self._places.setdefault(path, Place(parent=parent))
        place.seen += 1
        may_lack = path.endswith(".energy_kwh") and value is None  # before the second sample
        place.types["number" if may_lack else _type(value)] = None
        if isinstance(value, dict):
            self._add_object(value, path)
        elif isinstance(value, list):
            for one in value:
                self.add(one, f"{path}[]", "")
            if not value:
                place.values["[]"] = None
        elif value is not None and not self._is_volatile(path, value):
            place.values[_shown(self._say(value) if isinstance(value, str) else value)] = None

    def _add_object(self, value: dict[str, Any], path: str) -> None:
        self._objects[path] = self._objects.get(path, 0) + 1
        has_data_keys = bool(DATA_KEYS.fullmatch(path)) or any(
            pattern.fullmatch(path) for pattern in self._data_keys
        )
        for key, one in value.items():
            if has_data_keys:
                self.add(one, f"{path}{{}}", "")
            else:
                name = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
                self.add(one, f"{path}.{name}", path)

    def _is_volatile(self, path: str, value: Any) -> bool:
        is_time = not isinstance(value, str | bool) and VOLATILE.search(path) is not None
        return is_time or any(pattern.fullmatch(path) for pattern in self._volatile)

    def lines(self) -> list[str]:
        return [self._line(path, self._places[path]) for path in sorted(self._places) if path]

    def _line(self, path: str, place: Place) -> str:
        is_key = path.endswith(("[]", "{}")) is False
        optional = " ?" if is_key and place.seen < self._objects.get(place.parent, 0) else ""
        values = list(place.values)
        more = [f"and {len(values) - MOST} more"] if len(values) > MOST else []
        text = " | ".join([*values[:MOST], *more])
        return f"{path}{optional}  {' | '.join(sorted(place.types))}  {text}".rstrip()


def outline(
    text: str,
    say: Callable[[str], str],
    volatile: Sequence[str] = (),
    data_keys: Sequence[str] = (),
) -> list[str] | None:
    """Lines of one document, or of JSON lines by their `type`; None for what is no JSON."""
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return None
    if not documents or not all(isinstance(one, dict | list) for one in documents):
        return None
    kinds: dict[str, Outline] = {}
    for one in documents:
        if isinstance(one, list):
            kinds.setdefault("", Outline(say, volatile, data_keys)).add(one)
            continue
        kind = f"<{one.get('type', 'line')}>" if len(documents) > 1 or "type" in one else ""
        kinds.setdefault(kind, Outline(say, volatile, data_keys)).add(one)
    return [f"{kind}{line}" for kind, found in sorted(kinds.items()) for line in found.lines()]


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "list", dict: "object"}[type(value)]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        value = float(f"{value:.4g}")  # the last digits are the processor's
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONG else f"{text[:LONG]}…"
