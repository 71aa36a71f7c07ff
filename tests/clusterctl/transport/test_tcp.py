"""Addresses that are tried one after the other, until one answers."""

from __future__ import annotations

import socket
import time

import pytest

from clusterctl.errors import TransportError
from clusterctl.transport import tcp as dial
from clusterctl.transport.base import Limits

LIMITS = Limits(tcp_s=1.0)


def family_the_kernel_lacks() -> int:
    """What AF_INET6 is where IPv6 is turned off."""
    for family in (12, 4, 5, 9):  # DECnet, IPX, AppleTalk, X.25
        try:
            socket.socket(family, socket.SOCK_STREAM).close()
        except OSError:
            return family
    pytest.skip("this kernel speaks every protocol")


def test_an_address_of_a_family_that_is_turned_off_leaves_the_next_one_its_turn() -> None:
    off = family_the_kernel_lacks()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        candidates: list[dial.Address] = [
            (off, ("::1", port)),
            (socket.AF_INET, ("127.0.0.1", port)),
        ]
        dial.connect(candidates, port, time.monotonic() + 1, LIMITS).close()


def test_only_addresses_of_such_a_family_are_a_failure_with_its_reason() -> None:
    off = family_the_kernel_lacks()
    with pytest.raises(TransportError, match=r"not supported.*port 22") as caught:
        dial.connect([(off, ("::1", 22))], 22, time.monotonic() + 1, LIMITS)
    assert caught.value.phase == "tcp"


def test_only_addresses_of_the_family_that_ssh_config_names_are_used() -> None:
    def found(host: str, family: int) -> set[int]:
        later = time.monotonic() + 5
        return {kind for kind, _ in dial.addresses(host, 22, later, LIMITS, family)}

    assert (
        found("127.0.0.1", socket.AF_INET) == found("localhost", socket.AF_INET) == {socket.AF_INET}
    )
    with pytest.raises(TransportError) as caught:
        found("127.0.0.1", socket.AF_INET6)
    assert caught.value.phase == "resolve"
