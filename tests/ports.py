"""Ports for what tests start later."""

from __future__ import annotations

import itertools
import os
import random
import socket

# Below the ports that the kernel gives to outgoing connections (32768 and up on Linux), where anybody's
# connection may take one between its choice and its use; and 29500 up are those of `launch`.
_FIRST, _LAST, _SLICES = 20_000, 29_500, 8
_EACH = (_LAST - _FIRST) // _SLICES
_turns = itertools.count(random.randrange(_EACH))  # not those of the run before or beside this one


def free_port() -> int:
    """A port nobody listens at; none twice in a process, nor the same in two workers of a test run."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _SLICES
    for turn in itertools.islice(_turns, _EACH):
        port = _FIRST + worker * _EACH + turn % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free for a test")
