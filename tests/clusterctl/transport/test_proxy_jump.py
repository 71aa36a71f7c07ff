"""The way through jump hosts: shared when it works, and a failure that serves all who wait for it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.fanout import Fanout
from clusterctl.transport import proxy_jump as jump
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.paramiko_backend import ParamikoTransport
from clusterctl.transport.proxy_jump import JumpPool
from tests.clusterctl.transport.shell import Done, run

LIMITS = Limits(tcp_s=1.0, handshake_s=1.0, channel_s=1.0, command_s=1.0)


@pytest.mark.parametrize("width", [12, 3])
def test_nodes_behind_a_silent_jump_host_wait_for_it_once(home: Path, listener, width: int) -> None:
    gate = listener()
    (home / ".ssh" / "config").write_text(f"Host n*\n ProxyJump 127.0.0.1:{gate.port}\n")
    transport = ParamikoTransport()

    def work(node: Node, progress: Progress) -> Done:
        with closing(transport.connect(node, LIMITS, progress)) as connection:
            return run(connection, "true", b"", 1)

    started = time.monotonic()
    results = list(Fanout([Node(f"n{i}") for i in range(12)], work, width=width, deadline_s=30))
    assert time.monotonic() - started < 2 * LIMITS.handshake_s
    assert gate.visits == 1
    reasons = {result.unreachable and result.unreachable.message for result in results}
    assert reasons == {"jump host 127.0.0.1: no ssh banner within 1 s"}


def test_a_failure_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect():
        asked.append(1)
        raise TransportError("tcp", "no answer", hint="look")

    pool = JumpPool()
    for holds_s, attempts in ((60.0, 1), (60.0, 1), (0.0, 2)):
        monkeypatch.setattr(jump, "FAILURE_HOLDS_S", holds_s)
        with pytest.raises(TransportError, match="no answer") as caught:
            pool.borrow("gate", connect)
        assert (caught.value.phase, caught.value.hint, len(asked)) == ("tcp", "look", attempts)
    with pytest.raises(TransportError):
        pool.borrow("another gate", connect)
    assert len(asked) == 3
