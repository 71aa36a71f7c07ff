"""`agent`: makes agents that a test talks to; what they have started ends with the test."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.launch.session import agents_of
from tests.clusterctl.launch.harness import tagged
from tests.clusterctl.payload.agents import Agent


@pytest.fixture
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: list[Agent] = []

    def make(**args: Any) -> Agent:
        made.append(Agent(tmp_path, getattr(request, "param", "python3"), **args))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        for pid in [*agents_of(one.run_id), *tagged(one.run_id)]:
            with contextlib.suppress(ProcessLookupError):  # it was ending
                os.kill(pid, signal.SIGKILL)
        one.process.wait(5)
        for pipe in (one.process.stdin, one.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
