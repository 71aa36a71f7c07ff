"""An agent apart from the ssh session that started it, and the head that is connected to it.

The program that ssh starts forks the agent and then only passes bytes on, between ssh and a socket
of the agent's in this user's own folder. When the connection is lost that program ends, and the
agent goes on. A head that comes back starts another such program, says how much it has already
got, and is sent the rest: no message twice and none lost.
"""

import glob
import json
import os
import queue
import socket
import sys
import threading
import time

from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.files.private import name_of_run, own_files, own_path, replace_file
from clusterctl.payload.jobs.processes import is_alive, start_of
from clusterctl.payload.launch.json_socket import line_of
from clusterctl.payload.proc_files import as_text, or_none
from clusterctl.payload.tools import in_thread

BACKLOG = 50  # unsent messages, above which logs and telemetry wait
FLUSH_S = 3.0  # for the last messages, when the head reads slowly
PID_BYTES = 64
GREETING_BYTES = 1 << 20
SPEAKS_S = 15.0  # since its last word: a head pings every five seconds
SAY_S = 1.0
AGAIN_S = 0.2  # before the next try to take a connection
# Not kept, and not counted by the head: newer ones say the same, or a file has them.
PASSING = ("beat", "telemetry", "log", "resumed")


def socket_path(run, node, kind="agent"):
    return own_path(name_of_run(kind, "sock", run, node))


def fork_agent(path, work):
    """Run `work(listener)` in a process with a session of its own; returns in this one.

    Its stdout and stderr are a file beside the socket, which `relay` shows if it ends badly.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(4)
    if os.fork():
        listener.close()
        return
    code = 1
    try:
        os.setsid()
        replace_file(pid_file(path), b"%d %d" % (os.getpid(), start_of(os.getpid())))
        log = os.open(errors_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, target in enumerate((null, log, log)):
            os.dup2(target, number)
        work(listener)
        code = 0
    except BaseException:  # noqa: BLE001 - the end of a process
        sys.excepthook(*sys.exc_info())
    finally:
        for name in (path, pid_file(path)) + (errors_of(path),) * (code == 0):
            or_none(os.unlink, name)
        os._exit(code)


def errors_of(path):
    return path[: -len(".sock")] + ".err"


def pid_file(path):
    return path[: -len(".sock")] + ".pid"


def living(path, uid=None):
    """Process id of the agent or starter that has this socket; None when it has ended.

    Only a plain file of this user, or of `uid`, says so: a pipe in its place would be waited for.
    """
    try:
        with os.fdopen(open_own(pid_file(path), os.O_RDONLY, uid), "rb") as file:
            said = file.read(PID_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    pid, _, start = said.strip().partition(" ")
    is_number = pid.isdigit() and start.isdigit()
    return int(pid) if is_number and is_alive(int(pid), int(start)) else None


def agents_of(run, node=None):
    """Process ids of living agents of a run on this machine: for one node, or for all."""
    if node is not None:
        return [pid for pid in [living(socket_path(run, node))] if pid is not None]
    names = own_files("agent-%s-*.sock" % glob.escape(run[-24:]))
    return [pid for pid in map(living, names) if pid is not None]


def relay(path, word, resume, head):
    """Pass bytes between ssh and the agent until one of them ends. Raises OSError without one.

    `resume` is what the head has already got ({"seen": messages, "positions": bytes of each file}),
    None for the first head; `head` is its user, machine and process, for people.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(path)
    peer.sendall(line_of({"word": word, "resume": resume, "head": head}))

    def forward():
        orders = sys.stdin.buffer  # type: Any
        for data in iter(lambda: orders.read1(65536), b""):
            if or_none(_send_all, peer, data) is None:
                return  # the agent has gone
        or_none(peer.shutdown, socket.SHUT_RDWR)
        os._exit(0)  # the head has gone, and may have left a full pipe behind

    forwarding = in_thread(forward)
    while True:
        data = or_none(peer.recv, 65536)
        if not data:
            break
        while data:
            sent = or_none(os.write, 1, data)
            if sent is None:
                forwarding.join(FLUSH_S)  # the head has gone; its last order may still be here
                return
            data = data[sent:]
    try:  # of an agent that has ended badly
        with open(errors_of(path), "rb") as file:
            sys.stderr.write(as_text(file.read())[-4000:])
        os.unlink(errors_of(path))
    except OSError:
        pass


class HeadLink:
    """Messages to the head that is connected, and its orders. A head that comes back replaces its
    own older connection; another one is refused while the first still speaks: two supervisors of
    one run would end each other's ranks.

    Orders arrive in `orders`, among them {"op": "connect"} for each new head, which is to be given
    to `connect` and `repeat`; `on_loss()` is called when a head has gone, `on_word()` when the one
    that is connected has said something.
    """

    def __init__(self, listener, word, orders, on_loss, on_word=lambda: None):
        self._listener, self._word = listener, word
        self._orders, self._on_loss, self._on_word = orders, on_loss, on_word
        self._said = []  # type: list[bytes]  # all that is not passing, in order
        self._lock = threading.Lock()
        self._peer, self._waiting = None, None  # type: Any, Any
        self.was_connected = False
        self._head, self._heard_s = "", 0.0
        in_thread(self._accept)

    def send(self, message):
        """Raises nothing: without a head, what passes is dropped and all else is kept."""
        line = line_of(message)
        waiting = self._waiting
        if message["type"] not in PASSING:
            self._said.append(line)
        if waiting is not None:
            waiting.put(line)

    @property
    def is_connected(self):
        return self._waiting is not None

    def is_behind(self):
        """Whether logs and telemetry are to wait in their files."""
        waiting = self._waiting
        return waiting is None or waiting.qsize() > BACKLOG

    def connect(self, order):
        """Send to this head from now on; whether it is not refused."""
        peer, waiting = order["peer"], queue.SimpleQueue()  # type: Any, Any
        is_other = order["head"] != self._head
        with self._lock:
            speaks = self._peer is not None and time.monotonic() - self._heard_s < SPEAKS_S
            if is_other and speaks:
                _say_supervised(peer, self._head)
                order["taken"].set()
                return False
            self.was_connected = True
            if peer.fileno() < 0:
                order["taken"].set()
                return True  # it has gone again
            old, self._peer, self._waiting = self._peer, peer, waiting
            self._head, self._heard_s = order["head"], time.monotonic()
        order["taken"].set()
        if old is not None and is_other:
            _say_supervised(old, order["head"])
        elif old is not None:
            or_none(old.shutdown, socket.SHUT_RDWR)
        if order["resume"] is not None:
            self.send({"type": "resumed"})
        in_thread(self._write, peer, waiting)
        return True

    def repeat(self, first, end=None):
        """Send those of the kept messages once more."""
        waiting = self._waiting
        if waiting is not None:
            for line in self._said[first:end]:
                waiting.put(line)

    def flush(self):
        """Wait until everything has been sent to the head that is connected, FLUSH_S at most."""
        done, waiting = threading.Event(), self._waiting
        if waiting is not None:
            waiting.put(done)
            done.wait(FLUSH_S)

    def _accept(self):
        while self._listener.fileno() >= 0:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # too many open files on this machine, for example
                time.sleep(AGAIN_S)
                continue
            in_thread(self._serve, peer)

    def _serve(self, peer):
        lines = peer.makefile("rb")
        try:
            greeting = json.loads(lines.readline(GREETING_BYTES))
            if greeting["word"] != self._word:
                return
            facts = {name: greeting[name] for name in ("resume", "head")}
            taken = threading.Event()
            self._orders.put(dict(facts, op="connect", peer=peer, taken=taken))
            for line in lines:
                taken.wait()  # what one that is refused says is no order
                if self._peer is not peer:
                    break
                self._heard_s = time.monotonic()
                self._on_word()
                if line.endswith(b"\n") and line.strip():
                    self._orders.put(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it has gone, or is no head of this run
        finally:
            lines.close()
            self._disconnect(peer)

    def _write(self, peer, waiting):
        while True:
            item = waiting.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
            elif or_none(_send_all, peer, item) is None:
                or_none(peer.shutdown, socket.SHUT_RDWR)  # `_serve` finds it closed
                return

    def _disconnect(self, peer):
        with self._lock:
            is_last = self._peer in (None, peer)
            if self._peer is peer:
                self._waiting.put(None)
                self._peer = self._waiting = None
            peer.close()
        if is_last:
            self._on_loss()


def _say_supervised(peer, head):
    line = line_of({"type": "supervised", "head": head})
    or_none(peer.settimeout, SAY_S)
    or_none(_send_all, peer, line)
    or_none(peer.shutdown, socket.SHUT_RDWR)


def _send_all(peer, data):
    peer.sendall(data)
    return True
