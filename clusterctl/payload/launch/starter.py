"""The starter of a node's ranks (trainer/starter): one that stands by is used, else one is started.

It listens on a socket in this user's own folder, and a file beside that has its process id. It
keeps torch imported between the attempts of a run, which saves each rank of the next one that time.
"""

import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import time

from clusterctl.payload.files.private import own_folder, replace_file
from clusterctl.payload.jobs.processes import all_processes, is_alive, send, start_of
from clusterctl.payload.launch.session import living, pid_file, socket_path
from clusterctl.payload.proc_files import or_none

libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
END_S = 2.0  # after a signal
ANSWER_S = 2.0  # for one that stands by to take an order; it does so in milliseconds
DESCRIPTOR = "CLUSTERCTL_STARTER_SOCKET"


class Starter:
    """What starts the ranks of a run here, and reports their ends."""

    def __init__(self, run, node):
        self.path = socket_path(run, node, "starter")
        self.pid = None  # type: Any
        self.child = None  # type: Any  # its Popen; None where another agent has started it
        self.peer = None  # type: Any  # None before the start, and when it has gone
        self.unread = b""

    def start(self, order, env, cwd, log):
        """`order` is that of trainer/starter/agent_link.py. Raises OSError."""
        line = json.dumps(dict(order, op="start")).encode() + b"\n"
        if not self._is_taken(line):
            end_standby(self.path, (signal.SIGKILL,))  # one that does not answer
            self._start_cold(order["argv"], line, env, cwd, log)

    def _is_taken(self, line):
        """Whether one that stands by has taken the order."""
        self.pid = living(self.path)
        if self.pid is None:
            return False
        self.peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.peer.settimeout(ANSWER_S)
        try:
            self.peer.connect(self.path)
            self.peer.sendall(line)
            while b"\n" not in self.unread:
                data = self.peer.recv(65536)
                if not data:
                    break
                self.unread += data
        except OSError:
            pass
        answer, _, self.unread = self.unread.partition(b"\n")
        if answer and json.loads(answer)["type"] == "accepted":
            self.peer.setblocking(False)
            return True
        self._drop()
        return False

    def _start_cold(self, argv, line, env, cwd, log):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.path)
            listener.listen(4)
            with open(log, "ab") as output:
                self.child = subprocess.Popen(
                    argv,
                    env=dict(env, **{DESCRIPTOR: str(listener.fileno())}),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                    # While it imports it does not look whether its agent still lives.
                    preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
                )
            self.pid = self.child.pid
            replace_file(pid_file(self.path), b"%d %d" % (self.pid, start_of(self.pid)))
            self.peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.peer.connect(self.path)
            self.peer.sendall(line)
            self.peer.setblocking(False)
        except BaseException:
            or_none(os.unlink, self.path)
            raise
        finally:
            listener.close()

    @property
    def is_gone(self):
        return self.peer is None

    def messages(self):
        """What it has sent since the last call."""
        while self.peer is not None:
            try:
                data = self.peer.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._drop()
                break
            self.unread += data
        *lines, self.unread = self.unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def _drop(self):
        self.peer.close()
        self.peer = None


def standbys(run, node=None):
    """Process ids of the living starters of a run on this machine: of one node name, or of all."""
    names = [socket_path(run, node, "starter")] if node is not None else starters_of(run)
    return [pid for pid in map(living, names) if pid is not None]


def starters_of(run=""):
    return glob.glob("%s/starter-%s*.sock" % (or_none(own_folder), glob.escape(run[-24:])))


def end_idle(pid):
    """End a starter of a run without agents, unless it has ranks; False where it is none."""
    found = [path for path in starters_of() if living(path) == pid]
    if not found or any(one.ppid == pid for one in all_processes().values()):
        return False
    end_standby(found[0])
    return True


def end_standby(path, signals=(signal.SIGTERM, signal.SIGKILL)):
    """End the starter that stands by at a socket, if there is one."""
    pid = living(path)
    start = start_of(pid) if pid else None
    for number in signals:
        deadline = time.monotonic() + END_S
        while start is not None and is_alive(pid, start) and time.monotonic() < deadline:
            send([pid], number)
            time.sleep(0.01)
    for name in (path, pid_file(path)):
        or_none(os.unlink, name)
