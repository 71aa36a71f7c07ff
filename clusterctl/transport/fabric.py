"""fabric's one-node API over a connection of ours: put, get, sudo, without its way of connecting.

fabric itself accepts any host key (AutoAddPolicy, fabric/fabric #2071) and reads no known_hosts, so
it is handed a connection that is verified and logged in, and can open none.
"""

from __future__ import annotations

from typing import Any

import fabric
import paramiko

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.channels import ParamikoConnection


class _Handed(fabric.Connection):  # type: ignore[misc,unused-ignore]
    """Uses the transport it was given for as long as that lives."""

    def open(self) -> None:
        if not self.is_connected:
            raise TransportError("command", "the connection was lost")


def over(connection: ParamikoConnection, node: Node, stall_s: float) -> fabric.Connection:
    """A fabric connection to `node` whose transfers give up after `stall_s` without an answer.

    Closing stays with `connection`. Raises `TransportError("channel")` when the node has no sftp.
    """
    config = fabric.Config(lazy=True)  # no ~/.fabric.yaml, no ssh_config: all that is decided
    handed = _Handed(host=node.name, user=connection.wire.get_username(), config=config)
    client: Any = paramiko.SSHClient()
    client._transport = connection.wire
    handed.client, handed.transport = client, connection.wire
    channel = sftp_channel(handed)
    channel.settimeout(stall_s)
    return handed


def sftp_channel(handed: fabric.Connection) -> paramiko.Channel:
    """The channel of its sftp session, which is opened by this."""
    try:
        channel: paramiko.Channel | None = handed.sftp().get_channel()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise TransportError("channel", f"no sftp on the node: {error}") from None
    assert channel is not None
    return channel
