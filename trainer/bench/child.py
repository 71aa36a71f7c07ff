"""Work in a process of its own: what kills it is a result and never ends the caller."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from trainer.allocator import use_expandable_segments
from trainer.bench.peaks import status_bytes
from trainer.errors import one_line
from trainer.models import memory
from trainer.runlog import units

Progress = Callable[[int, int], None]
Work = Callable[[Progress], Any]
# What removes the locks of a child that was killed need not say so.
_NO_WARNING = "ignore::UserWarning:multiprocessing.resource_tracker"
_END_S = 10.0  # for a child that has sent its result


class Kind(enum.Enum):
    """How it ended."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the work returned, or why it did not in `reason`."""

    kind: Kind
    measured: Any = None  # of a training step: trial.Measured
    reason: str = ""


def try_in_child(work: Work, device: str, timeout_s: float, progress: Progress) -> Outcome:
    """Do it in a fresh process, which ends with this one; on a CPU it leaves memory to others.

    Only an allocator's error, or a kill while the kernel counted an out-of-memory kill, is
    OUT_OF_MEMORY; every other end is FAILED with its reason.
    """
    use_expandable_segments(os.environ)
    os.environ.setdefault("PYTHONWARNINGS", _NO_WARNING)
    context = multiprocessing.get_context("forkserver")
    # Forked from a server that has torch imported, a child starts in milliseconds, not seconds.
    context.set_forkserver_preload(["trainer.bench.trial", "torch._dynamo"])  # AdamW asks for it
    mine, theirs = context.Pipe()
    kills = oom_kills()
    process = context.Process(target=_child, args=(theirs, work, device))
    process.start()
    theirs.close()
    outcome: Outcome | None = None
    try:
        outcome = _listen(mine, process, timeout_s, progress)
    finally:
        late = outcome is not None and outcome.kind is Kind.TIMED_OUT
        if outcome is not None and not late:
            process.join(_END_S)  # a compiler's workers need time to end
        mine.close()  # a child that is still there ends by that
        process.join(0 if late else _END_S)
        if process.is_alive():
            try:
                os.killpg(process.pid or 0, signal.SIGKILL)  # with its own children
            except ProcessLookupError:  # not yet a group
                process.kill()
            process.join(_END_S)
    return outcome or _of_exit(process.exitcode, oom_kills() - kills)


def _listen(
    connection: Connection, process: Any, timeout_s: float, progress: Progress
) -> Outcome | None:
    """The child's result, TIMED_OUT when the time is up, None when it ends without a result."""
    deadline = time.monotonic() + timeout_s
    while True:
        ready = wait([connection, process.sentinel], max(0.0, deadline - time.monotonic()))
        if not ready:
            return Outcome(Kind.TIMED_OUT, reason=f"no result after {units.duration(timeout_s)}")
        if connection in ready:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                return None
            if isinstance(message, Outcome):
                return message
            progress(*message)
        elif not connection.poll():
            return None


def _of_exit(code: int | None, kills: int) -> Outcome:
    if code == -signal.SIGKILL and kills > 0:
        return Outcome(Kind.OUT_OF_MEMORY, reason="killed by the kernel's out-of-memory killer")
    if code is not None and code < 0:
        killed = f"killed by {signal.Signals(-code).name}"
        return Outcome(Kind.FAILED, reason=f"{killed}, and the kernel counts no out-of-memory kill")
    return Outcome(Kind.FAILED, reason=f"ended with code {code} and no output")


def oom_kills() -> int:
    """Out-of-memory kills the kernel has counted: in this control group, else on this machine."""
    cgroup = Path("/proc/self/cgroup")
    own = cgroup.read_text().strip().rpartition(":")[2] if cgroup.is_file() else ""
    for path in (Path("/sys/fs/cgroup", own.lstrip("/"), "memory.events"), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def _child(connection: Connection, work: Work, device: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends its children itself
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            connection.send(message)

    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    _give_way(device)
    try:
        outcome = Outcome(Kind.MEASURED, work(lambda done, total: send((done, total))))
    except Exception as error:  # noqa: BLE001 - the boundary: whatever it is becomes the result
        kind = Kind.OUT_OF_MEMORY if memory.is_out_of_memory(error) else Kind.FAILED
        outcome = Outcome(kind, reason=one_line(error))
    with contextlib.suppress(OSError):  # the bench has ended
        send(outcome)


def _end_with_parent(connection: Connection) -> None:
    """A bench that was killed must not leave a trial that fills the machine."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os.killpg(0, signal.SIGKILL)


def _give_way(device: str) -> None:
    """Make this process the one that runs out of memory, by an error or by being killed."""
    with contextlib.suppress(OSError):  # it is only a hint
        Path("/proc/self/oom_score_adj").write_text("1000")
    used = status_bytes("VmData")
    if used and device == "cpu":  # CUDA reserves address space far beyond what it uses
        limit = used + memory.available_bytes(torch.device("cpu"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
