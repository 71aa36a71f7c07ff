"""All regular expressions of the packages, found and not listed, and texts that are made to slow them
down.

Patterns come from the calls of `re` in the source (`re.compile(…)`, `re.sub(…)`): the first argument
is evaluated among the names of its module. Patterns that stand in tables are noted while `re`
compiles them.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = Path(__file__).parents[1]
PACKAGES = ("checks", "clusterctl", "dashboards", "trainer.runlog")
# What the user alone writes: options, node sets, the own hostfile, ssh_config, docstrings.
OF_USER = (
    "checks/registry.py",
    "clusterctl/node_sets.py",
    "clusterctl/param_types.py",
    "clusterctl/transport/ssh_config/",
)
CALLS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
# Characters, and CPU seconds that they may take; the short ones tell what would take minutes.
QUICK = ((300, 0.003), (2_000, 0.01))
WHOLE = (*QUICK, (10_000, 0.05), (100_000, 0.5))
MOST_WORDS, MOST_NAMED = 4, 8
# What is repeated, alone and behind each literal of a pattern.
UNITS = (
    "a", "A1_", "0", " ", "\t", "\n", ":", ".", "-", "=", ",", "/", "\\", '"', "'", "[", "(", "{",
    "a ", "a:", "a=1 ", "0.", "\u00e9", "\0", "x\n", " \n", "a.", "error: ",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A pattern, where it stands, and the methods that are called with a text."""

    where: str
    pattern: str | bytes
    flags: int
    methods: frozenset[str]

    def compiled(self) -> re.Pattern[Any]:
        return re.compile(self.pattern, self.flags)


@cache
def collect() -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """Every pattern, and the source of the calls whose pattern is known only at run time."""
    found: dict[tuple[str | bytes, int], Found] = {}
    unknown: list[str] = []
    for module, path, calls in _modules():
        text, place = path.read_text(encoding="utf-8"), path.relative_to(HOME)
        for node in calls:
            try:
                patterns, flags = _evaluated(node, module)
            except Exception:  # noqa: BLE001 - whatever evaluating a piece of source raises
                unknown.append(f"{place}: {ast.unparse(node)}")
                continue
            methods = _methods(node, text)
            for pattern in patterns:
                old = found.get((pattern, flags))
                both = methods | (old.methods if old else frozenset())
                found[pattern, flags] = Found(f"{place}:{node.lineno}", pattern, flags, both)
        for one in _held(list(vars(module).values()), 4):
            flags = one.flags & ~(0 if isinstance(one.pattern, bytes) else re.UNICODE)
            every = frozenset(("search",))
            found.setdefault((one.pattern, flags), Found(str(place), one.pattern, flags, every))
    return tuple(found.values()), tuple(unknown)


def _modules() -> Iterator[tuple[ModuleType, Path, list[ast.Call]]]:
    """Those that call `re`, and their calls."""
    for package in PACKAGES:
        for path in sorted((HOME / package.replace(".", "/")).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            calls = [one for one in nodes if isinstance(one, ast.Call) and _name(one.func) in CALLS]
            if calls:
                name = ".".join(path.relative_to(HOME).with_suffix("").parts)
                if not name.replace(".", "/").startswith(
                    tuple(one.removesuffix(".py") for one in OF_USER)
                ):
                    yield importlib.import_module(name), path, calls


def _held(values: list[Any], depth: int) -> Iterator[re.Pattern[Any]]:
    """Patterns in the tables of a module."""
    for one in values:
        if isinstance(one, re.Pattern):
            yield one
        elif depth and isinstance(one, dict):
            yield from _held(list(one.values()), depth - 1)
        elif depth and isinstance(one, list | tuple | set | frozenset):
            yield from _held(list(one), depth - 1)
        elif depth and is_dataclass(one) and not isinstance(one, type):
            yield from _held([getattr(one, each.name, None) for each in fields(one)], depth - 1)


def _name(function: ast.expr) -> str:
    is_re = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "re"
    return function.attr if is_re else ""  # type: ignore[union-attr]


def _evaluated(call: ast.Call, module: ModuleType) -> tuple[list[str | bytes], int]:
    flags = [one for one in call.args[1:] if _is_flag(one)]
    flags += [one.value for one in call.keywords if one.arg == "flags"]

    def value(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "", "eval"), vars(module))

    pattern = value(call.args[0])
    if isinstance(pattern, re.Pattern):
        return [], 0
    return [pattern], sum(int(value(one)) for one in flags)


def _is_flag(node: ast.expr) -> bool:
    return "re." in ast.unparse(node) and isinstance(node, ast.Attribute | ast.BinOp)


def _methods(call: ast.Call, text: str) -> frozenset[str]:
    """How a pattern is used: by the call itself, or by the name that it is assigned to."""
    own = _name(call.func)
    if own != "compile":
        return frozenset({own})
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and node.value.lineno == call.lineno:
            name = ast.unparse(node.targets[0])
            if name.startswith("_") and name.isidentifier():
                used = set(re.findall(rf"\b{name}\.(\w+)\b", text)) & set(CALLS)
                loose = len(re.findall(rf"\b{name}\b(?!\.\w)", text)) > 1
                if used and not loose:
                    return frozenset(used)
    return frozenset(("search",))


def attacks(pattern: str | bytes, flags: int) -> list[str]:
    """What is repeated, behind what: units, the pattern's own literals, and units behind these.

    As `begin\0repeated`.
    """
    words = list(dict.fromkeys(_literals(pattern, flags)))
    found = [f"{word}\0{unit}" for word in ("", *words[:MOST_WORDS]) for unit in UNITS]
    for word in words[:MOST_WORDS]:
        found += [f"\0{word}", f"\0{word} ", f"\0{word}\n"]
    first, rest = "".join(words[:1]), words[1:]
    for joint in ("", " "):
        found += [f"\0{joint.join(words)}", f"{first}\0{joint.join(rest)}"]
        found += [f"{first}\0{joint.join(rest[:-1])}"]  # never to its end
        found += [f"{first}{joint}{joint.join(rest[:-1])}\0{joint.join(rest[-1:])}"]
    named = [word for word in words if word.isalpha() and 2 < len(word) < 20][:MOST_NAMED]
    for one, other in itertools.permutations(named, 2):  # many begins before many half ends
        found += [f"\0{f'{one} ' * 40}{joint}{f'{other} -' * 33}" for joint in ("", "|")]
    return list(dict.fromkeys(one for one in found if one.partition("\0")[2]))


def _literals(pattern: str | bytes, flags: int) -> Iterator[str]:
    """Runs of characters that a pattern asks for; for a class one of its characters stands."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as parser
    text = "".join(_characters(parser.parse(pattern, flags)))
    return (run for run in text.split("\0") if run)


def _characters(parsed: Any) -> Iterator[str]:
    """A zero byte stands where anything may come between."""
    for operation, argument in parsed:
        name = str(operation).lower()
        if name == "literal":
            yield chr(argument)
        elif name == "subpattern":
            yield from _characters(argument[-1])
        elif name == "branch":
            for one in argument[1]:
                yield from ("\0", *_characters(one), "\0")
        elif name.endswith("_repeat"):
            low, _, inner = argument
            if low:
                yield from _characters(inner)
            else:
                yield from ("\0", *_characters(inner), "\0")
        elif name == "in":
            kind, value = str(argument[0][0]).lower(), argument[0][1]
            classes = {"digit": "0", "space": " "}
            if kind == "category":
                word = str(value).lower().rpartition("_")[2]
                yield "a" if "not" in str(value).lower() else classes.get(word, "a")
            elif kind in ("literal", "range"):
                yield chr(value if kind == "literal" else value[0])
            else:
                yield "\0"
        elif name == "any":
            yield "\0"


def slowest(found: Found, sizes: Sequence[tuple[int, float]]) -> str:
    """The first text that takes longer than its limit, in words; "" where there is none."""
    pattern = found.compiled()
    for attack in attacks(found.pattern, found.flags):
        begin, _, unit = attack.partition("\0")
        for size, limit_s in sizes:
            text: Any = (begin + unit * (size // len(unit)))[:size] + "\r!"
            text = text.encode("utf-8", "replace") if isinstance(found.pattern, bytes) else text
            for method in sorted(found.methods):
                took_s = _took_s(pattern, method, text)
                tries = 0
                while took_s > limit_s and tries < 2:  # a busy machine
                    took_s, tries = min(took_s, _took_s(pattern, method, text)), tries + 1
                if took_s > limit_s:
                    about = f"{method} of {begin!r} and many {unit!r}"
                    return f"{found.where}: {about}, {size} characters: {took_s:.3f} s"
    return ""


def _took_s(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    begun_s = time.thread_time()
    if method in ("search", "match", "fullmatch"):
        getattr(pattern, method)(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.thread_time() - begun_s


if __name__ == "__main__":
    patterns, unknown = collect()
    print(len(patterns), "patterns;", *unknown, sep="\n")
    for one in patterns:
        if slow := slowest(one, QUICK):
            print(slow, repr(one.pattern)[:150], flush=True)
