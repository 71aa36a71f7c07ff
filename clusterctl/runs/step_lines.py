"""Which lines of a long run's telemetry say where it stands: a month has 500,000 and more."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from trainer.runlog import run_files
from trainer.runlog.steps import Steps, after_line, only_starts
from trainer.runlog.telemetry import STEP_MARK

MOST_BYTES = 2 << 30  # that are looked at: 3 million steps


def size_of(path: Path) -> int:
    """Bytes of a file; 0 of one that is not there."""
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def lines_of_steps(
    path: Path, exact: int, owners: Collection[int] | None = None
) -> Iterator[tuple[bytes, bool]]:
    """(line, whether it is in the last `exact` bytes). Before those, of the steps between two
    events only the first and the last, which say what each start of the trainer did. Raises
    `OSError`."""
    size, first, held = size_of(path), True, b""
    at = max(0, size - MOST_BYTES)
    for line in run_files.lines(path, owners, MOST_BYTES):
        at += len(line) + 1
        is_step = line.startswith(STEP_MARK)
        if is_step and at <= size - exact:
            if first:
                yield line, False
            else:
                held = line
            first = False
            continue
        if held:
            yield held, False
            held = b""
        first = not is_step
        yield line, at > size - exact


class StepsOfLines:
    """What `lines_of_steps` says together: every start, and the time of the last bytes alone."""

    def __init__(self) -> None:
        self.steps = Steps()
        self._is_exact = False
        self.is_cut = False  # steps before the first one that is counted are not known

    def add(self, line: bytes, is_exact: bool) -> None:
        if is_exact and not self._is_exact and self.is_cut:
            self.steps = only_starts(self.steps)
        self._is_exact = is_exact
        self.is_cut |= not is_exact
        self.steps = after_line(self.steps, line)
