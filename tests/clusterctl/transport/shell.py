"""One command over a connection, to its end."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass

from clusterctl.errors import TransportError
from clusterctl.transport.channels import ParamikoConnection, ParamikoStream


@dataclass(frozen=True, slots=True)
class Done:
    rc: int | None
    out: bytes
    err: str  # the end of it


def run(connection: ParamikoConnection, command: str, stdin: bytes, timeout_s: float) -> Done:
    """Reads while it writes; a late command is sent SIGTERM and is a `TransportError`."""
    deadline = time.monotonic() + timeout_s
    out = bytearray()
    with closing(connection.stream(command, b"")) as stream:
        threading.Thread(target=_feed, args=(stream, stdin), daemon=True).start()
        try:
            while time.monotonic() < deadline:
                out += stream.read_some(1 << 20) or _nothing()
        except EOFError:
            return Done(stream.wait(5.0), bytes(out), stream.stderr_tail())
        stream.kill()
        raise TransportError("command", f"still running after {timeout_s:g} s")


def _feed(stream: ParamikoStream, stdin: bytes) -> None:
    with suppress(TransportError):  # it has ended
        stream.write(stdin)
    stream.close_stdin()


def _nothing() -> bytes:
    time.sleep(0.002)
    return b""
