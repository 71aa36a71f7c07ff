"""What NCCL's RAS says on this node: its status of the whole job, as it sent it.

RAS is a thread of every process with NCCL 2.24 or newer. Those of a node share one port
(SO_REUSEPORT), so that a connection may reach a process that is stopped: then another is tried.
The protocol is lines of text; src/ras/client_support.cc of NCCL has the commands. JSON came with
2.28.7; older versions refuse SET FORMAT, and are asked for their text.
"""

import base64
import errno
import re
import socket
import time
import zlib

from clusterctl.payload.jobs.processes import variable
from clusterctl.payload.proc_files import as_text, read_word

PORT = 28028
LOOPBACK = ("127.0.0.1", "::1")  # NCCL listens on what "localhost" means there
ANSWER_BYTES = 4 << 20  # some 6,000 ranks of communicators as JSON
LINE_BYTES = 4096
HANDSHAKE_S = 1.0  # the limit of NCCL's own client
TRIES = 3  # connections to one address
ASK_S = 4.0  # everything
NOTHING = "nothing listens there"
PEERS_S = 2  # for which RAS waits for ranks that do not answer it
INDENT = re.compile(rb"\n {3,}")  # of JSON; in text two blanks mean something
LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


class NoRas(Exception):
    """Why there is no answer."""


def ras_places(seen, given=None):
    """Addresses to ask: the user's, that of the job's NCCL_RAS_ADDR, else NCCL's own."""
    if given:
        return [tuple(given)]
    values = [variable(one, "NCCL_RAS_ADDR") or "" for one in seen]
    host, found, port = (values[0] if values else "").rpartition(":")
    if not found or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return [(host, PORT) for host in LOOPBACK]
    host = host.strip("[]")
    return [(one, int(port)) for one in (LOOPBACK if host in ("localhost", "") else (host,))]


def ras_is_off(seen):
    return any(variable(one, "NCCL_RAS_ENABLE") == "0" for one in seen)


def ask_ras(places, is_given=False, limit_s=ASK_S):
    """{text, cut, seconds} of one status, or {error, seconds}; text is packed."""
    started = time.monotonic()
    reasons = []  # type: list
    for host, port in places:
        try:
            text, is_cut = ask_patiently(host, port, is_given, started + limit_s)
        except NoRas as why:
            reasons.append("%s port %d: %s" % (host, port, why))
            continue
        packed = base64.b64encode(zlib.compress(INDENT.sub(b"\n", text), 1)).decode()
        found = {"text": packed, "cut": is_cut}
        break
    else:
        telling = [why for why in reasons if not why.endswith(NOTHING)] or reasons
        found = {"error": telling[0][:300]}
    return dict(found, seconds=round(time.monotonic() - started, 3))


def ask_patiently(host, port, is_given, deadline):
    why = "no answer"
    for _ in range(TRIES):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            with connected(host, port, is_given, min(HANDSHAKE_S, left_s)) as link:
                return converse(link, deadline)
        except socket.timeout:
            why = "it accepts connections and does not answer"
        except ConnectionRefusedError:
            why = NOTHING
            break
        except OSError as error:
            is_absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
            why = NOTHING if is_absent else error.strerror or str(error)
            break
    raise NoRas(why)


def connected(host, port, is_given, limit_s):
    """A socket; of this node's own addresses only, where the job and not our user names it."""
    link = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        link.settimeout(limit_s)
        if not is_given:
            link.bind((host, 0))
        link.connect((host, port))
    except BaseException:
        link.close()
        raise
    return link


def converse(link, deadline):
    """(answer, whether it was cut) of one status; raises NoRas, socket.timeout, OSError."""
    begun = time.monotonic()
    lines = Lines(link, min(begun + HANDSHAKE_S, deadline))
    link.sendall(b"CLIENT PROTOCOL 2\n")
    hello = lines.read()
    if not hello.upper().startswith("SERVER PROTOCOL "):
        raise NoRas("it is no NCCL RAS: %r" % hello[:60])
    for command in (b"TIMEOUT %d\n" % PEERS_S, b"SET FORMAT json\n"):
        link.sendall(command)
        answer = lines.read()
        if answer.upper() != "OK" and not answer.upper().startswith("ERROR"):
            raise NoRas("unexpected answer %r" % answer[:60])
    link.sendall(b"VERBOSE STATUS\n")
    text, is_cut = lines.rest(deadline)
    if not text:
        raise NoRas("it closed the connection without an answer")
    return text, is_cut


class Lines:
    """Lines of a socket until `deadline`, whatever dribbles in."""

    def __init__(self, link, deadline):
        self._link, self._deadline, self._data = link, deadline, b""

    def read(self):
        while b"\n" not in self._data:
            if len(self._data) > LINE_BYTES:
                raise NoRas("it is no NCCL RAS: a line of more than %d bytes" % LINE_BYTES)
            data = self._receive()
            if not data:
                raise NoRas("it closed the connection")
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return as_text(line).strip()

    def rest(self, deadline):
        self._deadline = deadline
        kept, size = [self._data], len(self._data)
        while size <= ANSWER_BYTES:
            data = self._receive()
            if not data:
                return b"".join(kept), False
            kept.append(data)
            size += len(data)
        return b"".join(kept)[:ANSWER_BYTES], True

    def _receive(self):
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise socket.timeout()
        self._link.settimeout(left_s)
        return self._link.recv(1 << 16)


def own_addresses():
    """IPv4 and IPv6 addresses of this node: RAS names nodes by one of them."""
    found = LOCAL.findall(read_word("/proc/self/net/fib_trie", ""))
    for line in read_word("/proc/self/net/if_inet6", "").splitlines():
        found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return sorted({one for one in found if not one.startswith("127.") and one != "::1"})[:256]


def inner_pid(pid):
    """A process's number in its own container, which is the one that NCCL knows."""
    found = re.search(r"^NSpid:.*\s(\d+)$", read_word("/proc/%d/status" % pid, ""), re.MULTILINE)
    return int(found.group(1)) if found else pid
