"""Frames and stacks: where a thread is, without the interpreter's outermost frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

_ROOTS = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_STANDARD = re.compile(r".*/lib/python3\.\d+/(?!.*(?:site|dist)-packages/)")

# The first frames of every thread. Frames outside of these mean nothing; a forked worker has its
# parent's frames there.
_FIRST = re.compile(
    r"_bootstrap (multiprocessing/process\.py|threading\.py)|_bootstrap_inner threading\.py|"
    r"_run_module_as_main (<frozen runpy>|runpy\.py)|<module> .*",
    re.DOTALL,
)
_RUN = ("run threading.py", "run multiprocessing/process.py")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. `path` is relative to the environment or the library, or as py-spy shortens it."""

    function: str  # the last part of the qualified name: py-spy gives that only from Python 3.11 on
    path: str
    line: int
    is_standard: bool = False  # of Python's own library

    @property
    def is_library(self) -> bool:
        """Of Python or of an installed package that training code uses."""
        is_native = _NATIVE.search(self.path) is not None
        return self.is_standard or is_native or bool(_LIBRARIES.match(self.path))

    def __str__(self) -> str:
        return f"{self.function} {self.path.rsplit('/', 1)[-1]}:{self.line}"


@lru_cache(1 << 16)
def make_frame(function: str, filename: str, short: str, line: int) -> Frame:
    """A frame of py-spy's: `Connection._recv`, /opt/…/lib/python3.11/multiprocessing/x.py."""
    name = function if function.startswith("<") else function.rsplit(".", 1)[-1]
    found = _ROOTS.match(filename)
    path = filename[found.end() :] if found else short
    return Frame(name, path, line, bool(_STANDARD.match(filename)))


DISPATCH = "torch/_ops.py:"
"""Calls any operator: the next frame shows which (as in payload/dump/frames.py)."""


@dataclass(frozen=True)
class Stack:
    """Frames from the innermost outwards; `source` is the innermost line not of torch/_ops.py."""

    frames: tuple[Frame, ...]
    source: str = ""

    @cached_property
    def coarse(self) -> tuple[tuple[str, str], ...]:
        """Functions without lines: what a loop keeps while it turns."""
        return tuple((frame.function, frame.path) for frame in self.frames)

    def text(self, site: int = 0, limit: int = 4) -> str:
        """`all_reduce <- step train.py:17 <- main`: the site, then the user's own frames."""
        if not self.frames:
            return "no Python frame"
        first, outer = self.frames[site], self.frames[site + 1 :]
        own = [frame for frame in outer if not frame.is_library]
        words = [str(first), *(frame.function for frame in own)]
        if first.is_library and own:  # the place in the library does not matter
            words[:2] = [first.function, str(own[0])]
        elif first.is_library:  # nothing of the user's: a library's own process
            words += [frame.function for frame in outer]
        short = [word for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
        return " <- ".join(short[:limit] + ["…"] * (len(short) > limit))


_NATIVE = re.compile(r"\.so(?:\.[\d.]{0,20})?$|\.(?:c|cc|cpp|cu|h|hpp)$")
_LIBRARIES = re.compile(
    r"^(torch|torchvision|colossalai|numpy|av|PIL|multiprocessing|threading|selectors|urllib3|"
    r"requests|wandb|tqdm|safetensors|transformers|diffusers|accelerate|deepspeed|einops|pandas|"
    r"decord|cv2|<frozen|<string>)(/|\.py|$| )"
)


def trim(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Frames from the innermost up to the first that merely started the thread."""
    kept: list[Frame] = []
    for frame in frames:
        name = f"{frame.function} {frame.path}"
        if _FIRST.fullmatch(name):
            # A script's own <module> is kept when nothing else would be left.
            return tuple(kept or [frame])
        if name not in _RUN:
            kept.append(frame)
    return tuple(kept)


class Book:
    """Stacks of all nodes, each kept once: equal ones are the same object."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[tuple[Frame, ...], str], Stack] = {}

    def stacks(
        self,
        frames: Sequence[Sequence[Any]],
        stacks: Sequence[Sequence[int]],
        source: dict[str, str],
    ) -> list[Stack]:
        """Stacks of a node's answer (payload/dump/frames.py) in its numbering."""
        made = [make_frame(*frame) for frame in frames]
        places = [f"{filename}:{line}" for _, filename, _, line in frames]
        found = []
        for stack in stacks:
            inner = (places[number] for number in stack if DISPATCH not in places[number])
            text = source.get(next(inner, ""), "")
            found.append(self.keep(trim(made[number] for number in stack), text))
        return found

    def keep(self, frames: tuple[Frame, ...], source: str = "") -> Stack:
        key = (frames, source)
        if key not in self._stacks:
            self._stacks[key] = Stack(frames, source)
        return self._stacks[key]


_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_FAULT_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*?)\])? \(most recent")


def parse_faulthandler(text: str) -> list[tuple[str, list[Frame]]]:
    """(thread name or "", frames) of faulthandler's text, the main thread last. Never raises."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        found = _FAULT_THREAD.match(line)
        if found:
            threads.append((found[2] or "", []))
        elif line.startswith("Stack (most recent"):
            threads.append(("", []))
        elif threads and (frame := _FAULT_FRAME.match(line)):
            filename, number, function = frame.groups()
            short = "/".join(filename.rsplit("/", 2)[-2:])
            threads[-1][1].append(make_frame(function, filename, short, int(number)))
    return threads
