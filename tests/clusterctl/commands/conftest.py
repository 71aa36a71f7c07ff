"""`user`: somebody with two nodes, which the tests of a file share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusterctl.commands.user import User
from tests.clusterctl.launch.harness import WAIT
from tests.lab import why_not


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> Any:
    make = request.getfixturevalue("module_lab" if why_not() is None else "module_loopback")
    return make(2)


@pytest.fixture
def user(nodes: Any, request: pytest.FixtureRequest) -> Iterator[User]:
    directory = Path(nodes.hostfile).parent / f"user-{time.monotonic_ns()}"
    directory.mkdir()
    one = User(nodes, directory)
    one.program(WAIT)
    yield one
    one.close()
