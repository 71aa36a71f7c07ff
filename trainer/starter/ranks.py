"""The ranks of a node as children of the starter: forked, waited for, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from importlib import metadata

from trainer.runlog.own_modules import module_command
from trainer.starter import visible
from trainer.starter.command import Command
from trainer.starter.preload import cannot_be_forked
from trainer.starter.program import Program

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@dataclass
class Ranks:
    """Those of one attempt."""

    alive: dict[int, int] = field(default_factory=dict)  # pid -> rank
    failed_s: float | None = None  # when the first one ended badly
    kill_s: float | None = None  # after SIGTERM: when those that still live get SIGKILL

    def start(self, command: Command, leave: Callable[[], None]) -> Program | None:
        """Fork all ranks; in each of them `leave()` closes what is the starter's, and the program
        that it is to run is returned."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.failed_s = self.kill_s = None
        for local_rank in range(command.slots):
            # Until it is a rank, it would answer a signal as the starter does: end the others.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                raise
            if not pid:
                try:
                    leave()
                    return _become(command, local_rank, parent, mask)
                except BaseException:  # noqa: BLE001 - the end of a process
                    traceback.print_exc()
                    os._exit(1)
            self.alive[pid] = command.first_rank + local_rank
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None

    def reap(self) -> list[tuple[int, int, int]]:
        """(rank, pid, exit code) of those that have ended; orphans of theirs are reaped, too."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            rank = self.alive.pop(pid, None)
            if rank is not None:
                code = os.waitstatus_to_exitcode(status)
                ended.append((rank, pid, code))
                if code and self.failed_s is None:
                    self.failed_s = time.monotonic()
        return ended

    def end(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a second call changes nothing."""
        if self.kill_s is None:
            self._send(signal.SIGTERM)
            self.kill_s = time.monotonic() + grace_s

    def kill_late(self) -> None:
        """SIGKILL for what still lives after the grace, and for what each has started."""
        if self.kill_s is not None and time.monotonic() >= self.kill_s:
            for pid in self.alive:
                with contextlib.suppress(ProcessLookupError):  # it has no session yet
                    os.killpg(pid, signal.SIGKILL)
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for pid in self.alive:  # not reaped, so the number is still theirs
            os.kill(pid, number)


def _become(
    command: Command, local_rank: int, parent: int, mask: set[int | signal.Signals]
) -> Program:
    """Make this forked process a rank; `mask` are the signals that it then waits with."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before that
    for number in (*SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    variables = command.variables(local_rank)
    _open_files(variables["RANK"], variables.get("CLUSTERCTL_ATTEMPT", "1"))
    os.environ.pop(visible.ROOM, None)
    os.environ.update(variables)
    hide_older_names(os.environ)
    words = [sys.executable, *command.program.words]
    if cannot_be_forked():
        module = command.program.words[1:] if command.program.words[0] == "-m" else ()
        alone = module_command(*module) if module else words
        os.execv(sys.executable, alone)  # `python PROGRAM`, with imports of its own
    visible.show(words, variables)
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()  # each rank would draw the same
    return command.program


def _open_files(rank: str, attempt: str) -> None:
    """No input; stdout and stderr in the order written, to the rank's log where runs have one.

    All attempts of a run write to one log, so each but the first begins with a line of its own.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    run_dir = os.environ.get("CLUSTERCTL_RUN_DIR")
    if run_dir:
        folder = f"{run_dir}/ranks"
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        log = os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if attempt != "1":
            os.write(log, f"--- attempt {attempt} ---\n".encode())
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)


# Variables of torch's flight recorder whose names have changed: a rank gets those of its torch.
OLDER_OF = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
KNOWS_NEWER = (2, 10)  # and warns of each older name that is set


def hide_older_names(variables: MutableMapping[str, str], version: str | None = None) -> None:
    """Leave out the older name where a torch of this version reads the newer one."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", torch_version() if version is None else version)
    if found is None or (int(found[1]), int(found[2])) < KNOWS_NEWER:
        return
    for newer, older in OLDER_OF.items():
        if newer in variables:
            variables.pop(older, None)


def torch_version() -> str:
    """That of the torch which is imported, or would be; "" without one."""
    imported = getattr(sys.modules.get("torch"), "__version__", None)
    if imported is not None:
        return str(imported)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
