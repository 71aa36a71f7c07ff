"""paramiko without invoke. Other modules import paramiko from here, so that none loads it first.

paramiko needs invoke only for `Match exec` of its own ssh_config reader, which is not used here;
importing it takes longer than paramiko itself (95 of 145 ms). fabric imports it where it is needed.
"""

from __future__ import annotations

import logging
import sys

_HIDE = "invoke" not in sys.modules
if _HIDE:
    sys.modules["invoke"] = None  # type: ignore[assignment]
try:
    import paramiko as paramiko
finally:
    if _HIDE:
        del sys.modules["invoke"]

# Raised by calls on a connection or channel that is closed or breaks.
BROKEN = (paramiko.SSHException, EOFError, OSError)


def channel_request(channel: paramiko.Channel, name: str, *parts: bool | str) -> paramiko.Message:
    """A request of RFC 4254 on a channel; the first part says whether a reply is wanted."""
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    for part in (name, *parts):
        message.add_boolean(part) if isinstance(part, bool) else message.add_string(part)
    return message


# Errors reach callers as exceptions: paramiko's own log would print them once more.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
