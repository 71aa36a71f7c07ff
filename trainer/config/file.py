"""Python configuration files: evaluated in a process of their own, which returns plain data.

`_base_` (a path relative to the file, a short name such as `stage1`, or a list of them) names files
whose values come first; a dict is merged into the base's dict unless it holds `_delete_: True`.
Names with a leading underscore are the file's own.
"""

from __future__ import annotations

import ast
import marshal
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config.program import why_program
from trainer.errors import ConfigError
from trainer.runlog import units

Key = tuple[str, ...]

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
_LIMIT_S = 30.0
OWN_PROGRAM = (
    "a configuration is for the bundled trainer; how to run a program of your own on all nodes: "
    "docs/guide/own-program.md"
)

# Runs the file and sends its plain data home. The file's own prints go to stderr.
_CHILD = r"""
import marshal, os, sys, types
out, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
path = sys.argv[1]
class Odd(Exception): pass
def plain(value, name, depth=0):
    if depth > 100:
        raise Odd("%s is nested more than 100 levels deep" % name.split(".")[0])
    if isinstance(value, dict):
        return {plain(k, name, depth + 1): plain(v, "%s.%s" % (name, k), depth + 1)
                for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        return kind(plain(v, name, depth + 1) for v in value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise Odd("%s is a %s; a config holds numbers, strings, lists, tuples and dicts"
              % (name, type(value).__name__))
try:
    space = {"__name__": "__config__", "__file__": path}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), space)
    skip = (types.ModuleType, types.FunctionType, type)
    data = {k: plain(v, k) for k, v in space.items()
            if (k == "_base_" or not k.startswith("_")) and not isinstance(v, skip)}
    answer = ("ok", data)
except Odd as error:
    answer = ("error", 0, str(error))
except SyntaxError as error:
    answer = ("error", error.lineno or 0, "%s: %s" % (type(error).__name__, error.msg))
except BaseException as error:
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    answer = ("error", lines[-1] if lines else 0, "%s: %s" % (type(error).__name__, error))
out.write(marshal.dumps(answer))
out.flush()
"""


@dataclass
class Tree:
    """Nested plain data and, for each key, the place that set it: `file:line` or a flag."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where a key comes from; that of its nearest parent when it has none of its own."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.places:
                return self.places[key[:end]]
        return "the configuration"

    def set(self, key: Key, value: Any, place: str) -> None:
        """Set a nested value; dicts on the way are made."""
        node: dict[Any, Any] = self.data
        name = key[-1]
        for parent in key[:-1]:
            if not isinstance(node.get(parent), dict):
                node[parent] = {}
            node = node[parent]
        # Bucket tables have numbers for keys.
        as_number = name not in node and is_whole(name) and any(isinstance(k, int) for k in node)
        node[int(name) if as_number else name] = value
        self.places[key] = place

    def merge(self, other: Tree) -> None:
        """Lay `other` over this tree; `_delete_` in one of its dicts drops what stood below."""
        self.data = _merged(self.data, other.data)
        self.places.update(other.places)


def is_whole(name: str) -> bool:
    """Whether a key is a number in words, as JSON has the frame counts of bucket tables."""
    return re.fullmatch(r"-?[0-9]{1,18}", name) is not None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = {} if above.get("_delete_") else dict(below)
    for name, value in above.items():
        if isinstance(value, dict):
            old = result.get(name)
            value = _merged(old if isinstance(old, dict) else {}, value)
        result[name] = value
    result.pop("_delete_", None)
    return result


def short(name: str | Path) -> Path | None:
    """Our configuration of a short name (`demo`). A file of that name beside the reader, which
    would be run, is `./demo`."""
    path = CONFIGS / f"{name}.py"
    is_short = "/" not in str(name) and not Path(name).suffix
    return path if is_short and path.is_file() else None


def read(path: Path, _seen: tuple[Path, ...] = (), *, known: Collection[str] | None = None) -> Tree:
    """The file with its bases beneath it; `known` are the keys of which it must set one.

    Raises `ConfigError` with file and line; a program is refused before it is run.
    """
    path = path.resolve()
    if path in _seen:
        chain = " -> ".join(map(str, (*_seen, path)))
        raise ConfigError(f"{chain}: these files inherit in a circle")
    _refuse_program(path, known)
    data = dict(_evaluate(path))
    bases = data.pop("_base_", [])
    places = _lines(path)
    own = Tree(data, {key: f"{path}:{line}" for key, line in places.items()})
    tree = Tree()
    for base in [bases] if isinstance(bases, str) else bases:
        lower = read(short(base) or path.parent / base, (*_seen, path))
        twice = sorted(set(tree.data) & set(lower.data))
        if twice:
            where = f"{tree.place((twice[0],))} and {lower.place((twice[0],))}"
            names = ", ".join(twice)
            raise ConfigError(f"{path}: two files of _base_ set {names} ({where})")
        tree.merge(lower)
    tree.merge(own)
    return tree


def _refuse_program(path: Path, known: Collection[str] | None) -> None:
    if path.suffix not in ("", ".py") and path.is_file():
        kinds = "a configuration is a .py file, or the config.json of a run"
        raise ConfigError(f"{path}: {kinds}", hint=OWN_PROGRAM)
    try:
        why = why_program(path.read_bytes(), known)
    except OSError as error:
        text = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise ConfigError(f"the config file {path} cannot be read: {text}") from None
    if why is not None:
        place = f"{path}:{why[0]}" if why[0] else str(path)
        text = f"{place}: this is a program, not a configuration ({why[1]}); it was not run"
        raise ConfigError(text, hint=OWN_PROGRAM)


def _evaluate(path: Path) -> dict[str, Any]:
    try:
        words = [sys.executable, "-I", "-c", _CHILD, str(path)]
        nothing = subprocess.DEVNULL
        child = subprocess.run(words, stdin=nothing, capture_output=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} is still running after {units.duration(_LIMIT_S)}") from None
    try:
        answer = marshal.loads(child.stdout)
    except (EOFError, ValueError, TypeError):
        last = child.stderr.decode(errors="replace").strip().splitlines()[-3:]
        ended = f"ended Python while it was read (exit code {child.returncode})"
        raise ConfigError(f"{path} {ended}: {' '.join(last)}") from None
    if answer[0] == "ok":
        return dict(answer[1])
    _, line, text = answer
    raise ConfigError(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def _lines(path: Path) -> dict[Key, int]:
    """The line of every key that is written out: assignments, dict displays, dict(...) calls."""
    found: dict[Key, int] = {}

    def walk(node: ast.expr, key: Key) -> None:
        entries: list[tuple[Any, int, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            entries = [(n.value, n.lineno, v) for n, v in pairs if isinstance(n, ast.Constant)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            entries = [(word.arg, word.value.lineno, word.value) for word in node.keywords]
        for name, line, value in entries:
            if name is not None:
                place = (*key, str(name))
                found[place] = line
                walk(value, place)

    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found[(target.id,)] = statement.lineno
                    walk(statement.value, (target.id,))
    return found
