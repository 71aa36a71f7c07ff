"""The starter of a node's ranks (trainer/starter): one that stands by is used, else one is started.

It listens on a socket in this user's own folder, and a file beside that has its process id. It
keeps torch imported between the attempts of a run, which saves each rank of the next one that time;
on a spare (launch/warm.py) it imports it before there is anything to start.
"""

import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import time

from clusterctl.payload.files.private import own_files, replace_file
from clusterctl.payload.jobs.processes import all_processes, is_alive, process, send, start_of
from clusterctl.payload.launch.json_socket import JsonSocket
from clusterctl.payload.launch.session import living, pid_file, socket_path
from clusterctl.payload.prelude import ARGS
from clusterctl.payload.proc_files import age_s, or_none

libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
END_S = 2.0  # after a signal
ANSWER_S = 2.0  # for one that stands by to take an order; it does so in milliseconds
IMPORT_S = 30.0  # from its own start; before that it may still import
STOPPED = ("T", "t")
DESCRIPTOR = "CLUSTERCTL_STARTER_SOCKET"


class Starter:
    """What starts the ranks of a run here, and reports their ends."""

    def __init__(self, run, node):
        self.path = socket_path(run, node, "starter")
        self.pid = None  # type: Any
        self.child = None  # type: Any  # its Popen; None where another agent has started it
        self.peer = None  # type: Any  # None before the start, and when it has gone
        self.asked = None  # type: Any  # what one that stands by has not answered yet
        self.answer_until_s = 0.0

    def start(self, order, log):
        """`order` is that of trainer/starter/agent_link.py. Raises OSError."""
        self.pid = living(self.path)
        found = process(self.pid) if self.pid is not None else None
        if found is None or found.state in STOPPED or not self._send(order):
            self._start_cold(order, log)
            return
        import_s = IMPORT_S - age_s(found.start)
        self.answer_until_s = time.monotonic() + max(ANSWER_S, import_s)
        self.asked = order, log

    def _start_cold(self, order, log):
        end_standby(self.path, (signal.SIGKILL,))  # one that cannot take the order
        argv, env = order["argv"], order["env"]
        with start_standby(self.path, argv, env, log, ends_with_agent=True) as self.child:
            self.pid = self.child.pid
            if not self._send(order):
                raise OSError("the starter cannot be reached at %s" % self.path)

    def _send(self, order):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(ANSWER_S)
        try:
            peer.connect(self.path)
            self.peer = JsonSocket(peer)
            self.peer.send(dict(order, op="start"), ANSWER_S)
        except OSError:
            peer.close()
            self.peer = None
            return False
        return True

    @property
    def is_gone(self):
        return self.peer is None or self.peer.is_gone

    def messages(self):
        """What it has sent since the last call. Raises OSError.

        Where one that stood by does not take the order, another is started.
        """
        lines = self.peer.lines() if self.peer is not None else []
        found = [json.loads(line) for line in lines]
        if self.is_gone:
            self._drop()
        if self.asked is not None:
            answer = found[0]["type"] if found else None
            is_late = time.monotonic() > self.answer_until_s
            if answer == "refused" or (answer is None and (is_late or self.is_gone)):
                order, self.asked = self.asked, None
                self._drop()
                self._start_cold(*order)
                return []
            if answer == "accepted":
                self.asked = None
        return found

    def _drop(self):
        if self.peer is not None:
            self.peer.close()
        self.peer = None


def variables(given):
    """What a starter and its ranks are given beside what ssh and the login have set, which differs
    between connections; `given` has what the head has decided."""
    env = dict(given)
    path = env.get("PATH") or os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    env["PATH"] = os.path.dirname(ARGS["python"]) + ":" + path
    if env.get("OMP_NUM_THREADS") == "auto":
        env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ARGS["slots"]))
    for name in ("run", "job", "node", "run_dir", "workdir"):
        env["CLUSTERCTL_" + name.upper()] = ARGS[name]
    return with_own_path(env)


def with_own_path(env):
    """What PYTHONPATH names is looked for from the run's folder; an empty part, as of
    `PYTHONPATH=$PYTHONPATH:/x`, would be that folder itself."""
    if "PYTHONPATH" not in env:
        return env
    parts = filter(None, env["PYTHONPATH"].split(os.pathsep))
    own = [os.path.join(ARGS["workdir"], part) for part in parts]
    return dict(env, PYTHONPATH=os.pathsep.join(own))


def log_name(node):
    return "starter-%s.log" % node.replace("/", "_")


@contextlib.contextmanager
def start_standby(path, argv, env, log, ends_with_agent):
    """Start a starter that listens at `path`; gives its Popen. In the block it can be connected to,
    even when it has ended at once. Raises OSError.

    It goes to the run's folder by itself: Python 3.10, which does not know PYTHONSAFEPATH, imports
    from the folder in which it starts.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def set_signal():  # while it imports it does not look whether its agent still lives
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    try:
        listener.bind(path)
        listener.listen(4)
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                env=with_own_path(dict(os.environ, **env, **{DESCRIPTOR: str(listener.fileno())})),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
                preexec_fn=set_signal if ends_with_agent else None,
            )
        replace_file(pid_file(path), b"%d %d" % (child.pid, start_of(child.pid)))
        yield child
    except BaseException:
        or_none(os.unlink, path)
        raise
    finally:
        listener.close()


def standbys(run, node=None):
    """Process ids of the living starters of a run on this machine: of one node name, or of all."""
    names = [socket_path(run, node, "starter")] if node is not None else starters_of(run)
    return [pid for pid in map(living, names) if pid is not None]


def starters_of(run=""):
    return own_files("starter-%s*.sock" % glob.escape(run[-24:]))


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
