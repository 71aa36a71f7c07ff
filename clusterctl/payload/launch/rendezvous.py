"""Where the ranks of a run can meet: a port of the first node that every node reaches.

torch itself waits ten minutes for an address that names another machine on some node
(127.0.1.1 for the own name, `localhost` in a hostfile) or is behind a firewall.
"""

import fcntl
import os
import re
import socket
import struct

from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import in_thread

PROBE_S = 3.0  # for one address, from one node


class RendezvousListener:
    """Holds the first free port until rank 0 uses it; sends this run's word to each client."""

    def __init__(self, ports, word):
        self.port = None
        self._socket = None  # type: Any
        self._answer = word.encode() + b"\n"
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        for port in ports:
            try:
                # All addresses, as torch's store does; connections in TIME_WAIT do not matter.
                self._socket = socket.create_server(
                    ("", port), family=family, dualstack_ipv6=both, backlog=1024
                )
            except OSError:
                continue
            self.port = port
            self._thread = in_thread(self._serve)
            return

    def _serve(self):
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            or_none(peer.sendall, self._answer)  # the client may have gone
            peer.close()

    def close(self):
        if self._socket is not None:
            # close() alone would leave accept() waiting.
            or_none(self._socket.shutdown, socket.SHUT_RDWR)
            self._socket.close()
            self._thread.join(1.0)
            self._socket = None


def probe_port(address, port, word):
    """Why the listener that sends `word` cannot be reached at an address; None when it can."""
    try:
        with socket.create_connection((address, port), PROBE_S) as peer:
            reply = peer.recv(200)
    except socket.timeout:
        return "no answer in %g s" % PROBE_S
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if reply.strip() == word.encode() else "another machine or program answers there"


_ADDRESS = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")


def own_addresses():
    """Addresses of this node, likeliest first: as ssh reached it, its route, its name."""
    found = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    found += [address_towards("192.0.2.1"), socket.gethostname()]
    # A machine may be called "(none)": that is no address, and the head takes none that is not.
    return [one for one in dict.fromkeys(filter(None, found)) if _ADDRESS.fullmatch(one)]


def address_towards(address):
    """The own address that a packet to `address` would carry; None without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing, asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def name_interface(env, variable, address):
    """Take a variable that is "auto" out of `env`; returns it with the interface's name."""
    if env.get(variable) != "auto":
        return {}
    del env[variable]
    name = interface_towards(address) if address else None
    return {variable: name} if name else {}


def interface_towards(address):
    """Name of the network interface whose address a packet to `address` would carry."""
    own = address_towards(address)
    if own is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # an interface without IPv4 address
            if own == socket.inet_ntoa(answer[20:24]) or (own[:4] == "127." and name == "lo"):
                return name
    return None
