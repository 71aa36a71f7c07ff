"""Whether a port of this node is free, and who listens there if it is not."""

import time

from clusterctl.payload.proc_files import all_pids, open_links, read_text, read_word

AGAIN, PAUSE_S = 5, 0.1  # a census of this machine under its other name holds it for a moment


def try_port(port):
    """`free`, or who listens there: a rendezvous store binds all addresses with SO_REUSEADDR."""
    for _ in range(AGAIN):
        told = try_once(port)
        if told == "free":
            break
        time.sleep(PAUSE_S)
    return told


def try_once(port):
    """As `try_port`, at this moment."""
    import socket

    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in (97, 99):
                continue  # EAFNOSUPPORT, EADDRNOTAVAIL: IPv6 is switched off
            return "%s %s" % (error.strerror, find_listener(port))
        finally:
            probe.close()
    return "free"


def find_listener(port):
    """Process that listens on a port, as far as this user can see it."""
    wanted = ":%04X" % port
    tables = [read_word("/proc/net/" + name, "", 4 << 20) for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    inodes = {"socket:[%s]" % row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    for pid in all_pids():
        if inodes.intersection(open_links(pid)):
            words = read_text("/proc/%d/cmdline" % pid, 200).split("\0")
            return "by pid %d: %s" % (pid, " ".join(words).strip())
    return "by a process that this user may not see" if inodes else ""
