"""Phases in the order of their value, one child process each, until a deadline.

A crash, a hang or no memory is the result of one phase and costs only what it had not measured:
a figure leaves the child when it comes.
"""

from __future__ import annotations

import functools
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainer.bench.child import Kind, try_in_child
from trainer.errors import one_line

MEASURED, WRONG, PARTLY, CUT, STOPPED = "measured", "wrong", "partly", "cut", "interrupted"
END_S = 1.0  # before the deadline, for the last table and for a child that is killed


@dataclass(frozen=True, slots=True)
class Options:
    """Where results go and what they are measured on."""

    out: Path
    device: str  # cuda or cpu
    tiny: bool  # shapes that a CPU handles in seconds: a rehearsal


@dataclass(frozen=True, slots=True)
class Phase:
    """`work(options, figures, *args, **how)` measures and returns a headline."""

    item: int
    name: str
    work: Callable[..., str]
    args: tuple[Any, ...] = ()
    limit_s: float = 60.0
    least_s: float = 8.0  # until its first figure: with less time left it is not begun
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment
    how: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of `work`


class Watcher(Protocol):
    """Gets each figure when it comes, and how each phase ends."""

    def begin(self, name: str) -> None: ...

    def figure(self, values: dict[str, Any]) -> None: ...

    def row(self, values: dict[str, Any]) -> None: ...


class Figures:
    """What a phase measures, in its child. Each figure is sent at once."""

    def __init__(self, send: Callable[[str, dict[str, Any]], None], errors: Path) -> None:
        self._send, self._errors = send, errors
        self.failures: list[str] = []
        self.wrong: list[str] = []

    def add(self, name: str, **values: Any) -> None:
        self._send(name, values)

    def attempt(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """A figure of what `work` returns, or of why it failed; the phase goes on after both."""
        start = time.perf_counter()
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - whatever it is becomes the figure
            keep_traceback(self._errors, name)
            self.failures.append(f"{name}: {one_line(error)}")
            self.add(name, error=one_line(error)[:300])
            return None
        self.add(name, **found, seconds=round(time.perf_counter() - start, 3))
        return found

    def judge(self, name: str, why: str) -> None:
        """Note that numbers of the figure are wrong; `why` is empty where they are right."""
        if why:
            self.wrong.append(f"{name}: {why}")


def keep_traceback(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    (folder / f"{plain}.txt").write_text(traceback.format_exc())


def run_phases(
    phases: Iterable[Phase], options: Options, deadline_s: float, watch: Watcher
) -> None:
    """Run what fits before the deadline, seconds from now; one row a phase.

    Once a phase does not fit, it and those behind it are cut. An interrupt is a row, too, and
    raised.
    """
    until = time.monotonic() + deadline_s - END_S
    is_over = False
    for phase in phases:
        left_s = until - time.monotonic()
        is_over = is_over or left_s < phase.least_s
        about = {"item": phase.item, "phase": phase.name}
        if is_over:
            text = f"{max(0.0, left_s):.0f} s were left, its first figure needs {phase.least_s:g}"
            watch.row({**about, "seconds": 0.0, "result": CUT, "reason": text})
            continue
        watch.begin(phase.name)
        start = time.monotonic()
        ended: dict[str, Any] = {"result": STOPPED}
        try:
            ended = _run(phase, options, left_s, about, watch)
        finally:
            watch.row({**about, "seconds": round(time.monotonic() - start, 2), **ended})


def _run(
    phase: Phase, options: Options, left_s: float, about: dict[str, Any], watch: Watcher
) -> dict[str, Any]:
    def take(name: Any, values: Any) -> None:
        watch.figure({**about, "figure": name, **values})

    environment = {**os.environ, **phase.variables}
    work = functools.partial(_work, phase, options, environment)
    try:
        outcome = try_in_child(work, options.device, min(phase.limit_s, left_s), take)
    except (OSError, EOFError) as error:  # what starts the children has died; start another
        return {"result": Kind.FAILED.value, "reason": one_line(error)}
    if outcome.kind is Kind.MEASURED:
        found: dict[str, Any] = outcome.measured
        return found
    if outcome.kind is Kind.TIMED_OUT and left_s < phase.limit_s:
        text = f"the deadline came after {left_s:.0f} s, its own limit is {phase.limit_s:g}"
        return {"result": CUT, "reason": text}
    return {"result": outcome.kind.value, "reason": outcome.reason[:300]}


def _work(phase: Phase, options: Options, environment: dict[str, str], send: Any) -> dict[str, Any]:
    os.environ.update(environment)  # the fork server has that of its start
    if options.tiny:
        import torch

        torch.set_num_threads(1)  # threads that wait for each other make small shapes slow
    figures = Figures(send, options.out / "errors")
    try:
        headline = phase.work(options, figures, *phase.args, **phase.how)
    except Exception:
        keep_traceback(options.out / "errors", f"{phase.item} {phase.name}")
        raise
    if figures.wrong:
        return {"result": WRONG, "headline": headline, "reason": "; ".join(figures.wrong)[:1000]}
    if figures.failures:
        why = "; ".join(figures.failures)[:1000]
        return {"result": PARTLY, "headline": headline, "reason": why}
    return {"result": MEASURED, "headline": headline}
