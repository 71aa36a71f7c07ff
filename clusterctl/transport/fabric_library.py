"""fabric's one-node API (put, get, sudo) over a connection of ours.

fabric itself accepts any host key (AutoAddPolicy, fabric/fabric #2071) and reads no known_hosts, so
it gets a connection that is verified and logged in, and cannot open one.
"""

from __future__ import annotations

from typing import Any

import fabric

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.bounded_sftp import BoundedSftp
from clusterctl.transport.channels import ParamikoConnection
from clusterctl.transport.paramiko_import import BROKEN, paramiko


class _Given(fabric.Connection):  # type: ignore[misc,unused-ignore]
    """Uses the transport it was given and never opens another."""

    def open(self) -> None:
        if not self.is_connected:
            raise TransportError("command", "the connection was lost")


def over(connection: ParamikoConnection, node: Node, stall_s: float) -> fabric.Connection:
    """A fabric connection to `node` whose transfers fail after `stall_s` without an answer.

    The caller closes `connection`. Raises `TransportError("channel")` without sftp.
    """
    config = fabric.Config(lazy=True)  # reads no ~/.fabric.yaml and no ssh_config
    given = _Given(host=node.name, user=connection.transport.get_username(), config=config)
    client: Any = paramiko.SSHClient()
    client._transport = connection.transport
    given.client, given.transport = client, connection.transport
    try:
        given._sftp = session = BoundedSftp.from_transport(connection.transport)
        channel: Any = session.get_channel() if session is not None else None
        if channel is None:
            raise paramiko.SSHException("it opens no channel")
        channel.settimeout(stall_s)
    except (*BROKEN, paramiko.SFTPError) as error:
        if not connection.transport.is_active():
            raise TransportError("channel", "the connection was lost") from None
        text = f"the node's sshd offers no sftp ({str(error).rstrip('.')})"
        hint = "its sshd_config needs the line: Subsystem sftp internal-sftp"
        raise TransportError("channel", text, hint=hint) from None
    return given
