"""Ends a pytest process that no timeout of pytest-timeout ends, and shows where it stood.

pytest-timeout raises in the main thread as soon as that runs Python code again; a call into C that
does not return, and threads that keep a process alive behind its last test, are out of its reach.
The watchdog of faulthandler is a thread in C: it writes all stacks to stderr and ends the process.
pytest-xdist then names the test and runs no other: the exit code is not that of tests that failed.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from typing import Any

import pytest

LATER_S = 60.0  # behind the test's own timeout: its fixtures end in that time
END_S = 120.0  # of a process behind its last test

_stderr = 2
_crashes: list[Any] = []


def pytest_configure() -> None:
    global _stderr
    _stderr = os.dup(2)  # now nothing is captured


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("timeout")
    own_s = mark.args[0] if mark and mark.args else item.config.getvalue("timeout")
    _arm(LATER_S + float(own_s))
    try:
        return (yield)
    finally:
        # A worker of pytest-xdist without work waits for the others.
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(error: Any) -> None:
    """Of pytest-xdist, in the process that it was started in; `error` where a worker has crashed."""
    if error is not None:
        _crashes.append(error)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    _arm(END_S)
    if _crashes:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def _arm(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_stderr)
