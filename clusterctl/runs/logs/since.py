"""Where in a log the lines since a time begin, as far as that can be known.

Log lines have no timestamps. Known are: when a file was written last; when an attempt began, whose
mark is in every log; and, in the log of rank 0, when each step was done that it tells of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.runs.attempts import Attempt
from clusterctl.runs.logs.files import LogFile
from clusterctl.runs.logs.parts import Part, lines_backward, marks_backward
from trainer.runlog.run_files import opened
from trainer.runlog.telemetry import FILE, StepRecord, decode

EXACT_S = 60.0  # lines between two known places that are no further apart are shown
_STEP = re.compile(rb"step (\d{1,12})/\d+  epoch ")  # as trainer.journal writes it

Place = tuple[int, float]
"""Bytes from the begin of a file, unix time when the file ended there."""


def begin_since(
    fd: int, found: os.stat_result, file: LogFile, since_s: float, run: KnownTimes
) -> int | None:
    """Where lines since then begin; None: that cannot be known."""
    size = found.st_size
    behind: Place = (size, found.st_mtime)
    if found.st_mtime < since_s:
        return size
    for place in _places_backward(fd, size, file, run):
        if place[1] < since_s:
            is_near = behind[1] - place[1] <= EXACT_S or behind[0] == place[0]
            return place[0] if is_near else None
        behind = place
    return 0 if behind[0] == 0 else None  # the whole file is newer, if its begin is known


class KnownTimes:
    """When a run and its attempts began and ended, and when its steps were done."""

    def __init__(self, run_dir: Path, attempts: Sequence[Attempt], began_s: float | None) -> None:
        self._telemetry = run_dir / FILE
        self.attempts, self.began_s = attempts, began_s

    def steps_backward(self) -> Iterator[tuple[int, float]]:
        """(step, unix time when it was done) from the last to the first."""
        try:
            with opened(self._telemetry) as (fd, status):
                for _, line in lines_backward(fd, Part(0, status.st_size)):
                    record = decode(line)
                    if isinstance(record, StepRecord) and record.time_s > 0:
                        yield record.step, record.time_s
        except OSError:
            return


def _places_backward(fd: int, size: int, file: LogFile, run: KnownTimes) -> Iterator[Place]:
    begins = {attempt.number: index for index, attempt in enumerate(run.attempts)}
    steps, end = run.steps_backward(), size  # both files repeat numbers in the same order
    for begin, mark in marks_backward(fd, size) if len(run.attempts) > 1 else ():
        if mark not in begins:
            continue
        yield from _step_places(fd, Part(begin, end), file, steps)
        yield begin, run.attempts[begins[mark]].began_s
        before = run.attempts[begins[mark] - 1] if begins[mark] else None
        if before is not None and before.ended_s is not None:
            yield begin, before.ended_s
        end = begin
    yield from _step_places(fd, Part(0, end), file, steps)
    if run.began_s is not None:
        yield 0, run.began_s


def _step_places(
    fd: int, part: Part, file: LogFile, steps: Iterator[tuple[int, float]]
) -> Iterator[Place]:
    """Behind each line of rank 0 about a step, from the last to the first."""
    if file.rank != 0:
        return
    for begin, line in lines_backward(fd, part):
        match = _STEP.match(line)
        if match is None:
            continue
        number = int(match[1])
        time_s = next((time_s for step, time_s in steps if step == number), None)
        if time_s is None:
            return
        yield begin + len(line) + 1, time_s
