"""Census: interfaces, names and routes of a node."""

from __future__ import annotations

import os

from clusterctl.payload.collect.fabric import values
from clusterctl.payload.prelude import ARGS, call, section


def look_at_network(timeout_s, names):
    call("network", list_interfaces, 3.0)
    section("addresses", ["ip", "-o", "addr", "show"], timeout_s)
    for name in names:
        call("name:" + name, lambda: resolve(name), min(5.0, timeout_s))
    if ARGS.get("reach"):
        address, port = ARGS["reach"]
        call("reach", lambda: reach(address, port, 3.0), 4.0)


def reach(address, port, timeout_s):
    """connected, refused (somebody is there), or why not: the way to the node where ranks meet."""
    import socket

    try:
        socket.create_connection((address, port), timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "error\t%s" % (error.strerror or error)
    return "connected"


def list_interfaces():
    """name, up or down, MTU, speed in Mb/s, whether a device stands behind it."""
    top = "/sys/class/net"
    lines = []
    for name in sorted(os.listdir(top)):
        here = "%s/%s" % (top, name)
        found = dict(line.split("\t") for line in values(here, ("operstate", "mtu", "speed")))
        cells = [found.get("%s/%s" % (here, key), "?") for key in ("operstate", "mtu", "speed")]
        lines.append("\t".join([name] + cells + ["1" if os.path.exists(here + "/device") else "0"]))
    return "\n".join(lines)


def resolve(name):
    """Addresses of a name as this node sees them; "@" is the node's own name."""
    import socket

    asked = os.uname().nodename if name == "@" else name
    try:
        found = socket.getaddrinfo(asked, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return "error\t%s" % error
    return "\n".join(sorted({str(item[4][0]) for item in found}))
