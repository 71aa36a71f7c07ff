"""Logs of a run as lines: what is there, then, if asked, what comes until the run ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checks.units import counted
from clusterctl.errors import CouldNotFindOut, UsageError
from clusterctl.payload.secrets.mask import LineMask
from clusterctl.runs.find import EVENTS_FILE
from clusterctl.runs.logs.files import FOLDER, Chosen, LogFile, LogFolder
from clusterctl.runs.logs.layout import Layout, LayoutReader
from clusterctl.runs.logs.parts import LONGEST, Part, attempt_part, last_lines, lines, mark_of
from clusterctl.runs.logs.since import KnownTimes, begin_since
from trainer.runlog.run_files import Lines

TAIL = 20  # lines of each log where nothing else is asked for
POLL_S = 0.25

Emit = Callable[[LogFile, str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be shown. `tail` None: all lines of that part."""

    chosen: Chosen = field(default_factory=Chosen)
    attempt: int | None = None
    since_s: float | None = None
    tail: int | None = TAIL
    follows: bool = False


class Logs:
    """The logs of one run directory."""

    def __init__(
        self,
        run_dir: Path,
        wanted: Wanted,
        emit: Emit,
        warn: Callable[[str], None],
        flush: Callable[[], None],
    ) -> None:
        """`emit` gets each line, `flush` is called when no more is there for now."""
        self._run_dir, self._wanted, self._emit = run_dir, wanted, emit
        self._warn, self._flush = warn, flush
        self._reader = LayoutReader(run_dir)
        self._layout = self._reader.read()
        self._times = KnownTimes(run_dir, self._layout.attempts, self._layout.began_s)
        self._folder: LogFolder | None = None
        self._seen: dict[str, _Seen] = {}
        self._masks: dict[str, LineMask] = {}
        self.refused: dict[str, str] = {}  # by name, why
        if self._layout.unread:
            self._say_unread(EVENTS_FILE, f"not read: {self._layout.unread}")

    def show(self) -> list[LogFile]:
        """What is there now; returns all logs. Raises `UsageError`, `CouldNotFindOut`."""
        self._check_attempt(self._layout)
        files = self._files()
        for file, part in self._parts(files):
            self._print(file, part)
        return files

    def follow(self) -> None:
        """What comes, until the run is over; of a run without a launcher until interrupted."""
        while True:
            is_over = self._reader.is_over()  # asked first: what was written before it is read
            is_new = [self._print_new(file) for file in self._found()]
            if any(is_new):
                continue
            if is_over:
                break
            self._flush()
            time.sleep(POLL_S)
        for file in self._found():  # a last line without an end stays so
            seen = self._seen.get(file.name)
            if seen is not None and seen.lines.rest and not seen.is_done:
                self._say(file, seen.lines.rest)

    def _found(self) -> list[LogFile]:
        """As `_files`; none while the folder cannot be read."""
        try:
            found = self._files()
        except CouldNotFindOut as error:
            self._say_unread(FOLDER, str(error))
            return []
        self.refused.pop(FOLDER, None)
        return found

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def _files(self) -> list[LogFile]:
        """Logs that are there now; none before the run has made the folder."""
        try:
            if self._folder is None:
                self._folder = LogFolder(self._run_dir)
            found = self._folder.files(self._wanted.chosen)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CouldNotFindOut(
                f"{self._run_dir / FOLDER} cannot be read: {_why(error)}"
            ) from None
        there = {file.name for file in found}
        for name in self._seen.keys() - there:
            del self._seen[name]  # one that comes again is another file
        return found

    def _check_attempt(self, layout: Layout) -> None:
        number, known = self._wanted.attempt, {one.number for one in layout.attempts} or {1}
        if number is not None and number not in known:
            raise UsageError(
                f"{self._run_dir.name} has no attempt {number}",
                hint=f"its attempts are {min(known)} to {max(known)}",
            )

    def _parts(self, files: list[LogFile]) -> Iterator[tuple[LogFile, Part]]:
        """What is wanted of each file; all are known before the first is printed."""
        found: list[tuple[LogFile, Part]] = []
        unknown: list[LogFile] = []
        for file in files:
            try:
                assert self._folder is not None
                with self._folder.opened(file) as (fd, status):
                    part, is_known = self._part(fd, status, file)
                    seen = _Seen(_whole(fd, status.st_size))
                    seen.lines.follow(status)
                    self._seen[file.name] = seen
            except OSError as error:
                self._refuse(file, error)
                continue
            found.append((file, part))
            unknown += [] if is_known else [file]
        if unknown:
            raise UsageError(_unknown(unknown, self._wanted.since_s or 0.0), hint=_INSTEAD)
        return iter(found)

    def _part(self, fd: int, status: os.stat_result, file: LogFile) -> tuple[Part, bool]:
        wanted, is_known = self._wanted, True
        # The line that is being written comes when it has its end.
        end = _whole(fd, status.st_size) if wanted.follows else status.st_size
        part: Part | None = Part(0, end)
        if wanted.attempt is not None:
            part = attempt_part(fd, end, wanted.attempt, self._layout.newest)
        if part is not None and wanted.since_s is not None:
            begin = begin_since(fd, status, file, wanted.since_s, self._times)
            is_known = begin is not None
            part = Part(max(part.begin, min(begin or 0, part.end)), part.end)
        if part is None:
            return Part(end, end), True
        return (part if wanted.tail is None else last_lines(fd, part, wanted.tail)), is_known

    def _print(self, file: LogFile, part: Part) -> None:
        try:
            assert self._folder is not None
            with self._folder.opened(file) as (fd, _):
                for line in lines(fd, part):
                    self._say(file, line)
        except OSError as error:
            self._refuse(file, error)

    def _print_new(self, file: LogFile) -> bool:
        """Whether there was something new."""
        seen = self._seen.setdefault(file.name, _Seen())
        if seen.is_done:
            return False
        try:
            assert self._folder is not None
            with self._folder.opened(file) as (fd, status):
                seen.lines.follow(status)
                found = seen.lines.more(fd)  # one piece in a turn, so that other logs have theirs
        except OSError as error:
            self._refuse(file, error)
            return False
        self.refused.pop(file.name, None)
        for line in found or ():
            mark = mark_of(line)
            if mark is not None and self._wanted.attempt is not None:
                seen.is_done = mark > self._wanted.attempt
                if seen.is_done:
                    break
                continue
            self._say(file, line)
        return found is not None

    def _say(self, file: LogFile, line: bytes) -> None:
        mask = self._masks.setdefault(file.name, LineMask())
        self._emit(file, mask.hide(line.decode("utf-8", "backslashreplace").rstrip("\r")))

    def _refuse(self, file: LogFile, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed just now
            self._say_unread(file.name, f"not read: {_why(error)}")

    def _say_unread(self, name: str, why: str) -> None:
        if name not in self.refused:
            self.refused[name] = why
            self._warn(why)


class _Seen:
    """How far a file was read."""

    def __init__(self, at: int = 0) -> None:
        self.lines = Lines(at, LONGEST)
        self.is_done = False  # another attempt has begun in it


_INSTEAD = "--tail N shows the last lines, --attempt N those of an attempt"


def _unknown(files: list[LogFile], since_s: float) -> str:
    first = (
        f"rank {files[0].rank}" if files[0].rank is not None else f"the starter of {files[0].node}"
    )
    others = f" and {counted(len(files) - 1, 'other log')}" if len(files) > 1 else ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_s))
    return f"no timestamps in the log of {first}{others}: --since {at} cannot be applied"


def _whole(fd: int, size: int) -> int:
    """Where the last line that has an end ends."""
    data = os.pread(fd, min(LONGEST, size), max(0, size - LONGEST))
    found = data.rfind(b"\n")
    return size - len(data) + found + 1 if found >= 0 else max(0, size - len(data))


def _why(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error}"
