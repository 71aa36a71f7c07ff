"""What the sentence of a rank's log says about its end, by the table of signatures. Pure."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from clusterctl.launch.causes import nccl_lines, prefixes, signatures
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


# The trainer and most programs write "error: …"; the interpreter, C++ and CUDA the others.
_STATED = re.compile(
    # A number alone is a figure of the training.
    r"error: (?!\s{0,9}[-+]?(?:\d{1,30}\s{0,9}$|\d{0,30}\.\d))"
    r"(?:rank (?P<rank>\d+): )?(?P<text>.+)|"
    r"(?P<fatal>(?:Fatal Python error|terminate called after throwing|CUDA error|"
    r"Memory access fault by GPU|double free or corruption|(?:free|malloc|realloc)\(\): |"
    r"corrupted size vs|munmap_chunk|\*\*\* stack smashing|"
    r"\*\*\* SIG(?!ABRT)[A-Z]{2,5} \(@0x[0-9a-f]{1,16}\) received by PID).*)|"  # glog
    # nccl-tests: host: Test CUDA failure common.cu:1030 'system not yet initialized'
    r"(?:\S{1,100}: )?(?P<test>(?:Test )?(?:CUDA|NCCL|Cuda) failure \S{1,100}:\d{1,6} '.*)"
)
_WHAT = re.compile(r"  what\(\):\s+(?P<text>.+)")  # the line below "terminate called …"
_ANY_RAISED = re.compile(r"(?:\w{1,80}\.){0,12}[A-Za-z_]\w{0,100}(?:: .*)?")  # below its frames
# The last line of a Python traceback: a class name, often with its module, and its str().
_ENDINGS = "Error|Exception|Interrupt|Exit|Timeout|Failure|Expired"
_RAISED = re.compile(rf"(?P<type>(?:\w+\.)*\w*(?:{_ENDINGS}))(?:: .*)?")
# Printed while the interpreter ends, and of tasks that nobody waits for.
_IGNORED = ("Exception ignored", "Error in atexit", "Task exception was never retrieved")
FEW_LINES = 5  # below a traceback of a rank that ends by it: warnings of libraries that unload
WATCHDOG = re.compile(signatures.WATCHDOG, re.IGNORECASE)
_OF_WATCHDOG = (
    "watchdog",
    "timed out",
    "timeout",
    "process down",
    "dump",
)  # one is in each of them
# The watchdog tells an error of this rank: `… terminated with exception: CUDA error: …`.
_OWN_ERROR = re.compile(
    r"(?:watchdog thread terminated with exception|raised the following async exception): "
    r"(?:\[[^\]]{0,200}\] )?(?:CUDA|NCCL) error.*",
    re.IGNORECASE,
)
# Follow a watchdog's own word, and say less.
_FOLLOWS = re.compile(r"after attempting to dump|observed flight recorder", re.IGNORECASE)
# torch explains NCCL's result, then `Last error:` and what NCCL warned of last; that is the reason.
_NCCL = re.compile(r"(?P<type>nccl[A-Z]\w{2,40}): ")
LAST_ERROR = "Last error:"
_NO_DETAIL = re.compile(
    r"\s*$|\[?[EWIF]\d{3,4} |\S{1,80}:\d{1,9}:\d{1,9} \[\d|Traceback \(|Exception raised|frame #|"
    r"terminate called|  what\(\)|During handling|The above exception|\w{1,60}Warning|Aborted"
)
# Of transformers and of torch.compile; the reason is the next line.
_SEE_BELOW = ("(look up to see its traceback):", "' raised:")
_MOST_DETAIL = 3  # lines: NCCL keeps one warning, and few have a second line
_ABORT = "terminate called"
_OF_MACHINE = (Kind.CUDA_OOM, Kind.CUDA_ERROR, Kind.DISK_FULL, Kind.STORAGE)
_VAGUE = (Kind.WORKER_EXCEPTION, Kind.CUDA_ERROR)
BEFORE_ABORT = 60  # lines of C++ frames between a traceback and the abort that it brings about
CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    # Below the error of the hook that prints it: a signal handler that raised meanwhile, as that
    # of torch's data loader does when one of its processes ends.
    "Original exception was:",
)
# Frames of a data loader that talks to one of its own processes: the peer is that process.
_OF_LOADER = re.compile(r'\s+File ".*/torch/utils/data/')
_OF_PROCESS = re.compile(r'\s+File ".*/multiprocessing/')


_HINT = "  hint: "  # below the trainer's `error: …` and its details, which are indented
LONGEST = 2000  # characters of a line that are matched; a rank may write any number


def _cut(lines: Sequence[str]) -> list[str]:
    return [line[:LONGEST] for line in lines]


def _plain(lines: Sequence[str]) -> list[str]:
    return [prefixes.plain(line[:LONGEST]) for line in lines]


class Found(NamedTuple):
    """Where an error stands: the line that states it, and the one after its last."""

    at: int
    end: int
    text: str  # without its prefix
    rank: int | None = None  # that it names
    last: int = -1  # where the last error of its chain stands

    @property
    def done(self) -> int:
        """The line after all that belongs to it, with the errors that handling it brought."""
        return max(self.end, self.last + 1)


def find(lines: Sequence[str]) -> Found | None:
    """The last line that states an error, with what belongs to it below."""
    lines = _plain(lines)
    for index in range(len(lines) - 1, -1, -1):
        stated = _STATED.match(lines[index])
        if stated:
            text = (stated["text"] or stated["fatal"] or stated["test"]).strip()
            last = index
            below = _WHAT.match(lines[index + 1]) if index + 1 < len(lines) else None
            if stated["fatal"] and below:
                text, last = f"{text}: {below['text']}", index + 1
            end = detail_end(lines, last)
            rank = int(stated["rank"]) if stated["rank"] else None
            return Found(index, end, _with_detail(text, lines[last + 1 : end]), rank)
    raised = _raised(lines)
    return None if raised is None else _found_at(lines, *raised)


def _found_at(lines: Sequence[str], index: int, last: int = -1) -> Found:
    end = detail_end(lines, index)
    text = _with_detail(lines[index].strip(), lines[index + 1 : end])
    return Found(index, end, text, last=last)


def detail_end(lines: Sequence[str], index: int) -> int:
    """The line after the last that belongs to the error at `index`: what NCCL says below it."""

    def at(number: int) -> str:
        return plain(lines[number]) if number < len(lines) else ""

    end = index + 1
    if at(index).endswith(_SEE_BELOW) and end < len(lines):
        end += 1
    if _NCCL.match(at(end)):
        end += 1
    if at(end).startswith(LAST_ERROR):
        last = min(len(lines), end + 1 + _MOST_DETAIL)
        end += 1
        while end < last and not _NO_DETAIL.match(at(end)):
            end += 1
    return end


def _with_detail(text: str, below: Sequence[str]) -> str:
    """`ncclSystemError: … Last error: …`; of NCCL's result the second line says more."""
    if below and _NCCL.match(below[0]) and "NCCL error" in text:
        text, below = below[0].strip(), below[1:]
    return " ".join([text, *map(str.strip, below)])


def details(lines: Sequence[str]) -> set[int]:
    """Where lines stand that NCCL's last error has, which are no words of a program's own."""
    found = set[int]()
    for index, line in enumerate(lines):
        if index and plain(line).startswith(LAST_ERROR):
            found.update(range(index, detail_end(lines, index - 1)))
    return found


def _raised(lines: Sequence[str]) -> tuple[int, int] | None:
    """Where the last traceback ends that is not printed while Python ends, and its chain.

    Of a chain ("During handling of the above exception …") it is the last error, but the first
    where that is the rank's own and the last is about a peer, or where memory, disk or device
    failed and the last says no more than that something went wrong: handling it failed, too.
    """
    chain: list[int] = []
    is_ignored = is_chained = False  # inside of "Exception ignored in: …"; of a chain
    is_below = False  # a frame
    for index, line in enumerate(lines):
        if line.startswith(_IGNORED):
            is_ignored = True
        elif line.startswith(CHAINED):
            is_chained = True
        elif _is_raised(line, is_below=is_below) and not _is_nccl(lines, index):
            if not is_ignored:
                chain = [*chain, index] if is_chained else [index]
            is_ignored = is_chained = False
        is_below = line.startswith('  File "') or (is_below and line.startswith("    "))
    if not chain:
        return None
    first, last = chain[0], chain[-1]
    cause, result = (classify(_found_at(lines, index).text).kind for index in (first, last))
    if result.is_consequence and not cause.is_consequence:
        return first, last
    is_first = cause in _OF_MACHINE and result in (*_VAGUE, Kind.STORAGE)
    return (first if is_first else last), last


def _is_raised(line: str, *, is_below: bool) -> bool:
    """Whether a traceback ends with this line; right below its frames the class has any name."""
    return bool(_RAISED.fullmatch(line) or (is_below and _ANY_RAISED.fullmatch(line)))


def _is_nccl(lines: Sequence[str], index: int) -> bool:
    """Whether a line only explains the error of NCCL above it."""
    return index > 0 and bool(_NCCL.match(lines[index])) and "NCCL error" in lines[index - 1]


def read(lines: Sequence[str]) -> Stated | None:
    """What a log states about its rank's end; None where no line states an error."""
    return _read(tuple(_cut(lines)))


@functools.lru_cache(256)  # of one log that is asked for several times
def _read(lines: tuple[str, ...]) -> Stated | None:
    found = find(lines)
    # NCCL's watchdog ends the process by an exception in C++, whose text may be cut.
    barks = _barks(lines)
    aborts = found is not None and is_abort(found.text)
    if found is None or aborts:
        for index in barks:
            if own := _OWN_ERROR.search(lines[index]):
                plain = _plain(lines[index : index + 3 + _MOST_DETAIL])
                return classify(_with_detail(own[0], plain[1 : detail_end(plain, 0)]))
    if found is not None and aborts:
        # What Python raised just before is why C++ aborts.
        raised = _raised(plain := _plain(lines)[: found.at])
        if raised is not None and raised[1] >= found.at - BEFORE_ABORT:
            stated = classify(_found_at(plain, *raised).text)
            if not stated.kind.is_consequence:
                return stated
    if barks and (found is None or aborts):
        told = [index for index in barks if not _FOLLOWS.search(lines[index])] or barks
        hit = WATCHDOG.search(lines[told[-1]])
        return Stated(Kind.NCCL_WATCHDOG, hit[0] if hit else lines[told[-1]])
    if found is None:
        return _of_threads(lines)
    index, text, rank = found.at, found.text, found.rank
    if classify(text).kind == Kind.PEER_LOST and _is_of_loader(_plain(lines[:index])):
        return Stated(Kind.WORKER_DIED, text)
    is_last = found.done - 1 >= len(lines) - FEW_LINES or is_stated(lines[index])
    stated = replace(classify(text, rank), is_last=is_last)
    is_refused = stated.kind == Kind.WORKER_EXCEPTION and not stated.detail and hint(lines, index)
    return replace(stated, kind=Kind.REFUSED) if is_refused else stated


def _barks(lines: Sequence[str]) -> list[int]:
    """Where NCCL's watchdog says that it gives up; most logs have none of its words."""
    text = "\n".join(lines).lower()
    if not any(word in text for word in _OF_WATCHDOG):
        return []
    return [index for index, line in enumerate(lines) if WATCHDOG.search(line)]


def _of_threads(lines: Sequence[str]) -> Stated | None:
    """What NCCL or a rank's own threads say, where the program has no word of its own."""
    if warned := nccl_lines.given_up(lines):
        if signatures.find(warned.text) is None and warned.result:
            return classify(f"{warned.text} ({warned.result})")
        return classify(warned.text)
    gone = nccl_lines.store_gone(lines)
    return Stated(Kind.PEER_LOST, gone) if gone else None


def hint_at(lines: Sequence[str], index: int) -> int | None:
    """The line with the hint that belongs to the `error: …` at `index`."""
    if not plain(lines[index]).startswith("error: "):
        return None
    for below in range(index + 1, len(lines)):
        line = plain(lines[below])
        if line.startswith(_HINT):
            return below
        if not line.startswith("  "):
            return None
    return None


def hint(lines: Sequence[str], index: int) -> str:
    """What the program itself advises; "" where it does not."""
    at = hint_at(lines, index)
    return "" if at is None else plain(lines[at])[len(_HINT) :].strip()


def _is_of_loader(above: Sequence[str]) -> bool:
    """Whether the traceback that ends below these lines is one of a data loader whose process is
    gone, by its frames."""
    begin = max((at for at, line in enumerate(above) if line.startswith("Traceback")), default=0)
    frames = [line for line in above[begin:] if line.lstrip().startswith('File "')]
    has_loader = any(map(_OF_LOADER.match, frames))
    return has_loader and _OF_PROCESS.match(frames[-1]) is not None


def is_abort(text: str) -> bool:
    """Whether C++ ends the process; what was raised before says why."""
    return text.startswith(_ABORT)


def is_stated(line: str) -> bool:
    """Whether a program writes such a line as its last word: `error: …`, an abort of C++."""
    return _STATED.match(plain(line)) is not None


def is_raised(line: str) -> bool:
    """Whether a traceback may end with this line."""
    return _RAISED.fullmatch(plain(line)) is not None


def plain(line: str) -> str:
    """Without the rank that torch writes before it, and what a launcher does."""
    return prefixes.plain(line[:LONGEST])


def classify(text: str, rank: int | None = None) -> Stated:
    """The class of one error; what no row of the table knows is an exception of the program."""
    raised = _NCCL.match(text) or _RAISED.match(text[:LONGEST])
    detail = raised["type"].rpartition(".")[2] if raised else ""
    known = signatures.find(text)
    if known is not None:
        return Stated(known.kind, text, detail, rank, known.is_of_node)
    if text.startswith("Fatal Python error"):
        detail = text.partition(": ")[2]
    return Stated(Kind.WORKER_EXCEPTION, text, detail, rank)


def first_line(text: str) -> str:
    """The part of an error that stands in one line of its log."""
    return text.partition(f" {LAST_ERROR}")[0]


def file_of(lines: Sequence[str]) -> str:
    """`train.py:45` of the innermost frame of the last traceback; "" without one."""
    for line in reversed(_plain(lines)):
        found = re.match(r'\s+File "(?P<path>[^"]+)", line (?P<line>\d{1,9})', line)
        if found:
            return f"{found['path'].rpartition('/')[2]}:{found['line']}"
    return ""


def signal_note(number: int) -> str:
    """What is likely of a signal, and not proved by it."""
    # "Killed" is what the shell prints for any SIGKILL; the kernel's count of OOM kills decides.
    return "possibly out of memory; unconfirmed" if number == signal.SIGKILL else ""
