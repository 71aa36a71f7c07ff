"""fabric's one-node API (put, get, sudo) over a connection of ours.

fabric itself accepts any host key (AutoAddPolicy, fabric/fabric #2071) and reads no known_hosts, so
it gets a connection that is verified and logged in, and cannot open one.
"""

from __future__ import annotations

from typing import Any

import fabric
import paramiko

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.channels import ParamikoConnection


class _Handed(fabric.Connection):  # type: ignore[misc,unused-ignore]
    """Uses the transport it was given and never opens another."""

    def open(self) -> None:
        if not self.is_connected:
            raise TransportError("command", "the connection was lost")


def over(connection: ParamikoConnection, node: Node, stall_s: float) -> fabric.Connection:
    """A fabric connection to `node` whose transfers fail after `stall_s` without an answer.

    The caller closes `connection`. Raises `TransportError("channel")` when the node has no sftp.
    """
    config = fabric.Config(lazy=True)  # reads no ~/.fabric.yaml and no ssh_config
    handed = _Handed(host=node.name, user=connection.transport.get_username(), config=config)
    client: Any = paramiko.SSHClient()
    client._transport = connection.transport
    handed.client, handed.transport = client, connection.transport
    channel = sftp_channel(handed)
    channel.settimeout(stall_s)
    return handed


def sftp_channel(handed: fabric.Connection) -> paramiko.Channel:
    """Open its sftp session; returns the channel. Raises `TransportError("channel")`."""
    try:
        channel: paramiko.Channel | None = handed.sftp().get_channel()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise TransportError("channel", f"no sftp on the node: {error}") from None
    assert channel is not None
    return channel
