"""What the sentence of a rank's log says about its end, by the table of signatures. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.launch.causes import signatures
from clusterctl.launch.causes.kinds import Kind


@dataclass(frozen=True, slots=True)
class Stated:
    """A sentence that states why a rank ended, with its class."""

    kind: Kind
    text: str  # without "error: " and the name of the rank
    detail: str = ""
    rank: int | None = None  # that the sentence itself names
    is_of_node: bool = False
    is_last: bool = True  # nothing but its details stands below it: it may be why the rank ended


# torch prints a rank's traceback with "[rank3]: " before each line.
_RANK_MARK = re.compile(r"\[rank\d+\]:? ?")
# The trainer and most programs write "error: …"; the interpreter, C++ and CUDA the others.
_STATED = re.compile(
    r"error: (?:rank (?P<rank>\d+): )?(?P<text>.+)|"
    r"(?P<fatal>(?:Fatal Python error|terminate called after throwing|CUDA error).*)"
)
_WHAT = re.compile(r"  what\(\):\s+(?P<text>.+)")  # the line below "terminate called …"
# The last line of a Python traceback: a class name, often with its module, and its str().
_ENDINGS = "Error|Exception|Interrupt|Exit|Timeout|Failure|Expired"
_RAISED = re.compile(rf"(?P<type>(?:\w+\.)*\w*(?:{_ENDINGS}))(?:: .*)?")
FEW_LINES = 5  # below a traceback of a rank that ends by it: warnings of libraries that unload
WATCHDOG = re.compile(signatures.WATCHDOG)
# The watchdog tells an error of this rank's own GPU: `… terminated with exception: CUDA error: …`.
_OWN_ERROR = re.compile(r"watchdog thread terminated with exception: (?:\[.*?\] )?CUDA error.*")
_ABORT = "terminate called"
_OF_MACHINE = (Kind.CUDA_OOM, Kind.CUDA_ERROR, Kind.DISK_FULL, Kind.STORAGE)
_VAGUE = (Kind.WORKER_EXCEPTION, Kind.CUDA_ERROR)
BEFORE_ABORT = 60  # lines of C++ frames between a traceback and the abort that it brings about
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    # Below the error of the hook that prints it: a signal handler that raised meanwhile, as that
    # of torch's data loader does when one of its processes ends.
    "Original exception was:",
)
# Frames of a data loader that talks to one of its own processes: the peer is that process.
_OF_LOADER = re.compile(r'\s+File ".*/torch/utils/data/')
_OF_PROCESS = re.compile(r'\s+File ".*/multiprocessing/')


def _plain(lines: Sequence[str]) -> list[str]:
    return list(map(plain, lines))


def find(lines: Sequence[str]) -> tuple[int, str, int | None] | None:
    """(index, error without its prefix, rank that it names) of the line that states the error."""
    lines = _plain(lines)
    for index in range(len(lines) - 1, -1, -1):
        stated = _STATED.match(lines[index])
        if stated:
            text = stated["text"] or stated["fatal"]
            below = _WHAT.match(lines[index + 1]) if index + 1 < len(lines) else None
            if stated["fatal"] and below:
                text = f"{text.strip()}: {below['text']}"
            return index, text.strip(), int(stated["rank"]) if stated["rank"] else None
    raised = _raised(lines)
    if raised is None:
        return None
    text, after = lines[raised].strip(), [line.strip() for line in lines[raised + 1 : raised + 3]]
    if len(after) == 2 and after[0] == "Last error:":  # of NCCL: whether a peer has gone
        text = f"{text} {after[1]}"
    return raised, text, None


def _raised(lines: Sequence[str]) -> int | None:
    """Where the last traceback ends that is not printed while Python ends.

    Of a chain ("During handling of the above exception …") it is the last error, but the first
    where that is the rank's own and the last is about a peer, or where memory, disk or device
    failed and the last says no more than that something went wrong: handling it failed, too.
    """
    chain: list[int] = []
    is_ignored = is_chained = False  # inside of "Exception ignored in: …"; of a chain
    for index, line in enumerate(lines):
        if line.startswith("Exception ignored"):
            is_ignored = True
        elif line.startswith(_CHAINED):
            is_chained = True
        elif _RAISED.fullmatch(line):
            if not is_ignored:
                chain = [*chain, index] if is_chained else [index]
            is_ignored = is_chained = False
    if not chain:
        return None
    first, last = chain[0], chain[-1]
    cause, result = (classify(lines[index].strip()).kind for index in (first, last))
    if result.is_consequence and not cause.is_consequence:
        return first
    return first if cause in _OF_MACHINE and result in _VAGUE else last


def read(lines: Sequence[str]) -> Stated | None:
    """What a log states about its rank's end; None where no line states an error."""
    found = find(lines)
    # NCCL's watchdog ends the process by an exception in C++, whose text may be cut.
    barks = [line for line in lines if WATCHDOG.search(line)]
    is_abort = found is not None and found[1].startswith(_ABORT)
    if found is None or is_abort:
        own = next(filter(None, map(_OWN_ERROR.search, barks)), None)
        if own is not None:
            return classify(own[0])
    if found is not None and is_abort:
        # What Python raised just before is why C++ aborts.
        raised = _raised(plain := _plain(lines)[: found[0]])
        if raised is not None and raised >= found[0] - BEFORE_ABORT:
            stated = classify(plain[raised].strip())
            if not stated.kind.is_consequence:
                return stated
    if barks and (found is None or is_abort):
        hit = WATCHDOG.search(barks[-1])
        return Stated(Kind.NCCL_WATCHDOG, hit[0] if hit else barks[-1])
    if found is None:
        return None
    index, text, rank = found
    if classify(text).kind == Kind.PEER_LOST and _is_of_loader(_plain(lines[:index])):
        return Stated(Kind.WORKER_DIED, text)
    is_last = index >= len(lines) - FEW_LINES or is_stated(lines[index])
    return replace(classify(text, rank), is_last=is_last)


def _is_of_loader(above: Sequence[str]) -> bool:
    """Whether the traceback that ends below these lines is one of a data loader whose process is
    gone, by its frames."""
    begin = max((at for at, line in enumerate(above) if line.startswith("Traceback")), default=0)
    frames = [line for line in above[begin:] if line.lstrip().startswith('File "')]
    has_loader = any(map(_OF_LOADER.match, frames))
    return has_loader and _OF_PROCESS.match(frames[-1]) is not None


def is_stated(line: str) -> bool:
    """Whether a program writes such a line as its last word: `error: …`, an abort of C++."""
    return _STATED.match(plain(line)) is not None


def is_raised(line: str) -> bool:
    """Whether a traceback may end with this line."""
    return _RAISED.fullmatch(plain(line)) is not None


def plain(line: str) -> str:
    """Without the rank that torch writes before it."""
    return _RANK_MARK.sub("", line, count=1) if line[:1] == "[" else line


def classify(text: str, rank: int | None = None) -> Stated:
    """The class of one error; what no row of the table knows is an exception of the program."""
    raised = _RAISED.match(text)
    detail = raised["type"].rpartition(".")[2] if raised else ""
    known = signatures.find(text)
    if known is not None:
        return Stated(known.kind, text, detail, rank, known.is_of_node)
    if text.startswith("Fatal Python error"):
        detail = text.partition(": ")[2]
    return Stated(Kind.WORKER_EXCEPTION, text, detail, rank)


def file_of(lines: Sequence[str]) -> str:
    """`train.py:45` of the innermost frame of the last traceback; "" without one."""
    for line in reversed(_plain(lines)):
        found = re.match(r'\s+File "(?P<path>[^"]+)", line (?P<line>\d+)', line)
        if found:
            return f"{found['path'].rpartition('/')[2]}:{found['line']}"
    return ""


def signal_note(number: int) -> str:
    """What is likely of a signal, and not proved by it."""
    # "Killed" is what the shell prints for any SIGKILL; the kernel's count of OOM kills decides.
    return "maybe out of memory, not proved" if number == signal.SIGKILL else ""
