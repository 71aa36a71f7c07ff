"""The log files of a run's ranks and starters: which there are, and how they are opened.

Another user may write into a run directory that a group shares. So no link is followed, only plain
files of the run's owner, of root or of this user are read, and a pipe is never waited for.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = "ranks"
STARTER = "starter-"
_RANK = re.compile(r"(\d{1,7})\.log", re.ASCII)
_STARTER = re.compile(rf"{STARTER}(.{{1,200}})\.log")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A name below `ranks/`; of a rank, or of what starts the ranks of a node."""

    rank: int | None
    node: str  # of a starter; "" of a rank
    name: str

    @property
    def label(self) -> str:
        return self.node if self.rank is None else str(self.rank)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which logs are shown. `ranks` None: all; `starters` are nodes, None: all."""

    ranks: Collection[int] | None = None
    starters: Collection[str] | None = ()

    def has(self, file: LogFile) -> bool:
        if file.rank is None:
            return self.starters is None or file.node in self.starters
        return self.ranks is None or file.rank in self.ranks


class Refused(OSError):
    """A file that exists and is not read."""


class LogFolder:
    """`ranks/` of a run directory, opened once: nobody can put another folder in its place."""

    def __init__(self, run_dir: Path) -> None:
        """Raises `OSError`; `Refused` for a link."""
        path = run_dir / FOLDER
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags)
        except NotADirectoryError:
            raise Refused(f"{path} is a link or no folder") from None
        self._path = path
        self._owners = {os.fstat(self._fd).st_uid, os.getuid(), 0}

    def close(self) -> None:
        os.close(self._fd)

    def files(self, chosen: Chosen) -> list[LogFile]:
        """The existing ones: ranks by number, then starters. Raises `OSError`."""
        names = os.listdir(self._fd)  # noqa: PTH208 - of a descriptor, pathlib has none
        found = [file for name in names if (file := _log_file(name))]
        ranks = sorted(file for file in found if file.rank is not None and chosen.has(file))
        starters = [file for file in found if file.rank is None and chosen.has(file)]
        return ranks + sorted(starters, key=lambda file: file.node)

    @contextlib.contextmanager
    def opened(self, file: LogFile) -> Iterator[tuple[int, os.stat_result]]:
        """A descriptor and the file's status. Raises `OSError`, `Refused` for what is not read."""
        with opened(self._path / file.name, self._owners, self._fd) as found:
            yield found


@contextlib.contextmanager
def opened(
    path: Path, owners: Collection[int], folder_fd: int | None = None
) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor and the status of a plain file of one of these users; no link is followed.

    With `folder_fd` the path's name is opened there. Raises `OSError`, `Refused`.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    name = str(path) if folder_fd is None else path.name
    try:
        fd = os.open(name, flags, dir_fd=folder_fd)
    except OSError as error:
        if stat.S_ISLNK(_mode(name, folder_fd)):
            raise Refused(f"{path} is a link: links are not followed") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{path} is no plain file")
        if found.st_uid not in owners:
            raise Refused(f"{path} belongs to user {found.st_uid}, who does not own the run")
        yield fd, found
    finally:
        os.close(fd)


def _mode(name: str, folder_fd: int | None) -> int:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _log_file(name: str) -> LogFile | None:
    if match := _RANK.fullmatch(name):
        return LogFile(int(match[1]), "", name)
    if match := _STARTER.fullmatch(name):
        return LogFile(None, match[1], name)
    return None
