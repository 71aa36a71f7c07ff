"""What the sentence of a rank's log says about its end: a table from wording to class. Pure.

The texts are those of CPython 3.10 to 3.13, torch 2.6 to 2.13 with gloo and NCCL, safetensors, the
Linux kernel's errno, and the trainer's own `error:` lines (trainer/errors.py and its callers).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout.*|watchdog thread terminated with exception.*|"
    r"taking the entire process down.*|Watchdog got stuck.*"
)


@dataclass(frozen=True, slots=True)
class _Row:
    kind: Kind
    words: re.Pattern[str]
    is_of_node: bool = False


def _row(kind: Kind, words: str, *, is_of_node: bool = False) -> _Row:
    return _Row(kind, re.compile(words, re.IGNORECASE), is_of_node)


# The first row that fits decides. A taken port and the watchdog are worded with the same classes
# as the loss of a peer (DistNetworkError), so they come before it.
TABLE: tuple[_Row, ...] = (
    _row(Kind.PORT_TAKEN, r"EADDRINUSE|address already in use|the program at that port has not answered"),
    _row(Kind.NCCL_WATCHDOG, _WATCHDOG.pattern),
    # Ended by us or by a launcher, not by itself.
    _row(Kind.PEER_LOST, r"is killed by signal: Terminated|^SystemExit: (?:143|130)$|SignalException"),
    _row(Kind.WORKER_DIED, r"DataLoader worker .*(?:is killed by signal|exited unexpectedly)|Pin memory thread exited|decoding processes were killed"),
    _row(Kind.PEER_LOST, r"another rank has ended|connection (?:was )?(?:closed|reset|refused|likely closed)|remote process exited|ncclRemoteError|socket (?:timeout|closed)|broken pipe|failed to recv|pair closure|recvValue failed|client socket has (?:failed|timed out)|timed out waiting|Dist(?:Network|Store)Error|Gloo connect"),
    _row(Kind.CUDA_OOM, r"OutOfMemoryError|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|too much for the memory of cuda|the smallest card has"),
    _row(Kind.CUDA_ERROR, r"uncorrectable ECC|unable to determine the device handle|GPU is lost|fallen off the bus|no CUDA-capable device|CUDA driver initialization failed|system not yet initialized", is_of_node=True),
    _row(Kind.ENVIRONMENT, r"ModuleNotFoundError|ImportError|this Python has no |cannot open shared object|undefined symbol|GLIBC\w* not found|no kernel image is available|driver version is insufficient|needs triton|needs Python's headers|C\+\+ compiler"),
    _row(Kind.CUDA_ERROR, r"CUDA error|device-side assert|cudaError|CUDNN_STATUS|CUBLAS_STATUS|ncclUnhandledCudaError|ncclSystemError"),
    _row(Kind.DISK_FULL, r"no space left|errno 28\b|ENOSPC|disk quota exceeded|\b(?:has|have) [\d.,]+ .?B free|it needs .* free$"),
    _row(Kind.STORAGE, r"stale file handle|errno (?:5|107|116)\]|input/output error|endpoint is not connected|remote i/o error|read-only file system"),
    _row(Kind.DIVERGED, r"\bDiverged\b|all ranks stop\b|rollbacks did not get past step|steps? \d+ to \d+ is .* times the median|(?:loss|norm|gradients?|weights|average|EMA)\b.* (?:is|are) (?:[-+]?inf|nan|not finite|non-finite|no longer a number)|non-?finite|FloatingPointError|diverged"),
    _row(Kind.CHECKPOINT_INVALID, r"holds no complete checkpoint|is not complete: it has no|its SHA-256 differs|is of another model|is not of this model|the files of ranks .* are missing|in loading state_dict|PytorchStreamReader failed|SafetensorError|invalid load key|UnpicklingError|not a valid file of weights|manifest\.json cannot be read|sampler's state is damaged|epoch\d+-global_step\d+\S* (?:cannot be read|has no|holds|is missing|is damaged|has [\d,]+ bytes)|CheckpointError"),
    _row(Kind.MISSING_FILE, r"FileNotFoundError|NotADirectoryError|no such file|errno 2\]|^there (?:is|are) no (?:\S*/\S*|\S+ for \S+|config file|checkpoint|weights|dataset)"),
    _row(Kind.USER_STOP, r"^(?:KeyboardInterrupt|interrupted)\b"),
)  # fmt: skip


def _plain(lines: Sequence[str]) -> list[str]:
    return [_RANK_MARK.sub("", line, count=1) if line[:1] == "[" else line for line in lines]


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
    raised: int | None = None
    is_ignored = False  # inside of "Exception ignored in: …", printed while Python ends
    for index, line in enumerate(lines):
        if line.startswith("Exception ignored"):
            is_ignored = True
        elif _RAISED.fullmatch(line):
            raised, is_ignored = (raised if is_ignored else index), False
    return None if raised is None else (raised, lines[raised].strip(), None)


def read(lines: Sequence[str]) -> Stated | None:
    """What a log states about its rank's end; None where no line states an error."""
    found = find(lines)
    # NCCL's watchdog ends the process by an exception in C++, whose text may be cut.
    barks = next((hit[0] for hit in map(_WATCHDOG.search, reversed(lines)) if hit), None)
    if barks and (found is None or found[1].startswith("terminate called")):
        return Stated(Kind.NCCL_WATCHDOG, barks)
    if found is None:
        return None
    index, text, rank = found
    is_last = index >= len(lines) - FEW_LINES or _STATED.match(_plain(lines)[index]) is not None
    return replace(classify(text, rank), is_last=is_last)


def classify(text: str, rank: int | None = None) -> Stated:
    """The class of one error; what no row of the table knows is an exception of the program."""
    raised = _RAISED.match(text)
    detail = raised["type"].rpartition(".")[2] if raised else ""
    for row in TABLE:
        if row.words.search(text):
            return Stated(row.kind, text, detail, rank, row.is_of_node)
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
