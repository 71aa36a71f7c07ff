"""Ends a pytest process that no timeout of pytest-timeout ends, and shows where it stood.

pytest-timeout raises in the main thread as soon as that runs Python code again; a call into C that
does not return, and threads that keep a process alive behind its last test, are out of its reach.
The watchdog of faulthandler is a thread in C: it writes all stacks to stderr and ends the process.
pytest-xdist then names the test.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

LATER_S = 60.0  # behind the test's own timeout: its fixtures end in that time
END_S = 120.0  # of a process behind its last test

_stderr = 2


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


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    _arm(END_S)


def _arm(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_stderr)
