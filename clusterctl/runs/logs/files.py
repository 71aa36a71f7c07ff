"""The log files of a run's ranks and starters: which there are, and how they are opened.

Another user may write into a run directory that a group shares. So no link is followed, only plain
files of the run's owner, of root or of this user are read, and a pipe is never waited for.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.runlog.run_files import folder_below, opened

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


class LogFolder:
    """`ranks/` of a run directory, opened once: nobody can put another folder in its place."""

    def __init__(self, run_dir: Path) -> None:
        """Raises `OSError`; `Refused` for a link."""
        with folder_below(run_dir, FOLDER) as fd:
            self._fd = os.dup(fd)
        self._path = run_dir / FOLDER
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


def _log_file(name: str) -> LogFile | None:
    if match := _RANK.fullmatch(name):
        return LogFile(int(match[1]), "", name)
    if match := _STARTER.fullmatch(name):
        return LogFile(None, match[1], name)
    return None
