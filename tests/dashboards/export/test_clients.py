"""Clients that hang up, send nothing or send what is no request: no line is said of them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dashboards.export import serve

SENT = (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"\0\xff\r\n\r\n")


@contextlib.contextmanager
def serving(registry: CollectorRegistry) -> Iterator[int]:
    server: Any = serve.make_server("127.0.0.1", 0, registry)
    server.daemon_threads, server.block_on_close = False, True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()  # waits for the threads of all requests
        thread.join()


def test_clients_that_reset_or_stall_are_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve.Request, "timeout", 0.05)
    with serving(CollectorRegistry()) as port:
        for data in SENT * 3:
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(data)
            client.close()  # with a reset
        stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for one in stalled:
            assert one.recv(1) == b""  # the server hung up
            one.close()
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_server_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(self: object) -> None:
        raise ArithmeticError("no\nsuch number")

    monkeypatch.setattr(serve.Request, "handle", fails)
    with serving(CollectorRegistry()) as port, socket.create_connection(("127.0.0.1", port)) as one:
        assert one.recv(1) == b""
    assert capfd.readouterr().err == "a request failed (ArithmeticError: no such number)\n"


def test_a_burst_of_clients_is_taken_while_the_server_is_busy() -> None:
    """A full queue answers nobody; each client asks again after seconds only."""
    server = serve.make_server("127.0.0.1", 0, CollectorRegistry())
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        for _ in range(100):
            address = ("127.0.0.1", server.server_port)
            stack.enter_context(socket.create_connection(address, timeout=2))
