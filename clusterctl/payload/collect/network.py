"""Census: interfaces, addresses, names, and whether the place where ranks meet can be reached."""

import os

from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import read_word
from clusterctl.payload.tools import call, section


def collect_network(timeout_s, names):
    call("network", list_interfaces, 3.0)
    section("addresses", ["ip", "-o", "addr", "show"], timeout_s)
    for name in names:
        call("name:" + name, lambda: resolve(name), min(5.0, timeout_s))
    if ARGS.get("reach"):
        address, port = ARGS["reach"]
        call("reach", lambda: reach(address, port, 3.0), 4.0)


def reach(address, port, timeout_s):
    """connected, refused (the node answers), or why not: the way to where ranks meet."""
    import socket

    try:
        socket.create_connection((address, port), timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "error\t%s" % (error.strerror or error)
    return "connected"


def list_interfaces():
    """name, up or down, MTU, speed in Mb/s, whether it has a device."""
    lines = []
    for name in sorted(os.listdir("/sys/class/net")):
        top = "/sys/class/net/%s/" % name
        cells = [read_word(top + key, "?") for key in ("operstate", "mtu", "speed")]
        lines.append("\t".join([name, *cells, "1" if os.path.exists(top + "device") else "0"]))
    return "\n".join(lines)


def resolve(name):
    """Addresses of a name as this node resolves it; "@" is the node's own name."""
    import socket

    try:
        host = os.uname().nodename if name == "@" else name
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return "error\t%s" % error
    return "\n".join(sorted({str(item[4][0]) for item in found}))
