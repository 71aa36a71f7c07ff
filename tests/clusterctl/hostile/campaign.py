"""Hostile answers again and again, until there were as many as a campaign wants, and what they cost."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tests.clusterctl.hostile import mangle
from tests.clusterctl.hostile.audit import nothing_done

# Of each verb and stream: `make campaign-hostile answers=400` is a quicker look.
ANSWERS = int(os.environ.get("HOSTILE_ANSWERS", "10000"))
WHOLE = pytest.param(ANSWERS, marks=[pytest.mark.slow, pytest.mark.timeout(36_000)])
TIMES = [30, WHOLE]
MOST_MB, MOST_S = 64, 5.0


class Cost:
    """Time and memory of a campaign's conversations."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self._answers, self._begun_s = mangle.answers(), time.monotonic()
        self._before_kb = _memory_kb()
        self.slowest_s, self.cpu_s, self.seeds = 0.0, 0.0, [0, 0]  # of a conversation, and which

    @property
    def answers(self) -> int:
        """How many hostile ones there were."""
        return mangle.answers() - self._answers

    @property
    def grown_mb(self) -> float:
        return (_memory_kb() - self._before_kb) / 1024

    def forget_memory(self) -> None:
        """What has grown so far was there at first, or is kept for ever."""
        self._before_kb = _memory_kb()

    @contextlib.contextmanager
    def conversation(self) -> Iterator[None]:
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        yield
        took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
        if took_s > self.slowest_s:
            self.slowest_s, self.seeds[0] = took_s, self.count
        if cpu_s > self.cpu_s:
            self.cpu_s, self.seeds[1] = cpu_s, self.count
        self.count += 1

    def check(self, limit_s: float = MOST_S, most_mb: float = MOST_MB) -> None:
        assert self.grown_mb < most_mb
        assert self.cpu_s < MOST_S
        assert self.slowest_s < limit_s + 10 * self.cpu_s  # other programs take their turns

    def say(self, more: str = "") -> None:
        took_s = time.monotonic() - self._begun_s
        text = f"{self.name}: {self.answers:,} hostile answers in {self.count:,} conversations"
        text += f", slowest {self.slowest_s:.2f} s (seed {self.seeds[0]})"
        text += (
            f" and {self.cpu_s:.2f} s of CPU (seed {self.seeds[1]}), grown {self.grown_mb:.0f} MB"
        )
        print(f"\n{text}, took {took_s:.0f} s{more}", flush=True)


def repeat(
    answers: int,
    name: str,
    work: Callable[[random.Random], None],
    limit_s: float,
    most_mb: float = MOST_MB,
) -> None:
    """Does `work` for one seed after the other: no exception, no growth, none slower than the limit."""
    work(random.Random(-1))
    cost, seed = Cost(name), 0
    while cost.answers < answers:
        out = io.StringIO()
        try:
            with cost.conversation(), redirect_stdout(out), redirect_stderr(out), nothing_done():
                work(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        assert "Traceback" not in out.getvalue(), f"seed {seed}"
        assert not set(out.getvalue()) & set("\x1b\x07\x9b\u202e\ud800"), f"seed {seed}"
        seed += 1
    cost.say()
    cost.check(limit_s, most_mb)


def _memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
