"""Name to address to TCP connection, each with its own time limit."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from contextlib import suppress

from checks import units
from clusterctl.errors import NoAnswer, TransportError
from clusterctl.transport.base import Limits
from clusterctl.transport.patched_transport import STALL_S

Address = tuple[int, tuple[object, ...]]  # family, socket address


def addresses(
    host: str, port: int, deadline: float, limits: Limits, family: int = socket.AF_UNSPEC
) -> list[Address]:
    """Addresses of a host; in a thread, as getaddrinfo has no limit. Raises `NoAnswer`."""
    if family != socket.AF_INET6:
        with suppress(ValueError):
            return [(socket.AF_INET, (str(ipaddress.IPv4Address(host)), port))]
    outcome: list[list[Address] | str] = []

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
            outcome.append([(kind, address) for kind, _, _, _, address in found])
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
            outcome.append(str(getattr(error, "strerror", error)))

    thread = threading.Thread(target=look_up, name=f"resolve-{host}", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not outcome:
        raise NoAnswer("resolve", f"name {host} not resolved within {units.duration(limits.tcp_s)}")
    if isinstance(outcome[0], str):
        hint = "add its address to the hostfile: name host=ADDRESS"
        raise NoAnswer("resolve", f"{host}: {outcome[0]}", hint=hint)
    return outcome[0]


def connect(candidates: list[Address], port: int, deadline: float, limits: Limits) -> socket.socket:
    """Connect to the first address that answers; each gets an equal share of the time left.

    Raises `TransportError`, which is `NoAnswer` where no address has given a sign of life.
    """
    message, hint, is_silent = "no address", None, True
    for position, (family, address) in enumerate(candidates):
        share = (deadline - time.monotonic()) / (len(candidates) - position)
        try:
            return _connect_one(family, address, max(0.05, share))
        except TimeoutError:
            message = f"no answer on port {port} within {units.duration(limits.tcp_s)}"
            hint = "the machine is off, or a firewall drops the packets"
        except ConnectionRefusedError:
            message = f"connection refused on port {port}"
            hint = "the machine is up, its sshd is not"
            is_silent = False
        except OSError as error:
            message, hint = f"{error.strerror or error} (port {port})", None
    raise (NoAnswer if is_silent else TransportError)("tcp", message, hint=hint)


def _connect_one(family: int, address: tuple[object, ...], timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)  # fails where IPv6 is turned off
    try:
        sock.settimeout(timeout_s)
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A node that lost power acknowledges nothing; the default limit is 15 min.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_S * 1000))
    except BaseException:
        sock.close()
        raise
    return sock
