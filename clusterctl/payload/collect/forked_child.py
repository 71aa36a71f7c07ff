"""Forked children for what may hang in the kernel. A fork takes 2 ms, another interpreter 15."""

import os
import select
import signal
import time

from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import SECTIONS, error_text, result

CHILD_LIFE_S = 60  # after which a child ends by itself


def fork_child(function):
    """Run `function` (no arguments, returns text) in a child: (process id, pipe)."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_LIFE_S)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # else a hung child keeps the channel open
            os.dup2(nowhere, descriptor)
        send_all(into, function().encode())
        status = 0
    except BaseException as error:  # noqa: BLE001 - its text is the answer
        send_all(into, error_text(error).encode()[:300])
    finally:
        os._exit(status)


def send_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


def collect_child(name, child, timeout_s):
    """As `section` for a forked child, which is killed when it is late; "" keeps no section."""
    pid, pipe = child
    started = time.monotonic()
    kept, ended = b"", False
    while not ended:
        left_s = started + timeout_s - time.monotonic()
        if not select.select([pipe], [], [], max(0.0, left_s))[0]:
            break
        data = os.read(pipe, 65536)
        kept, ended = kept + data, not data
    os.close(pipe)
    if ended:
        status = os.waitpid(pid, 0)[1]
        rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128
        found = ("ended", rc, b"" if rc else kept, kept if rc else b"")  # type: tuple
    else:
        or_none(os.killpg, pid, signal.SIGKILL)  # it may have ended, or not have its session yet
        found = ("timeout", None, kept, "no end in %g s, killed" % timeout_s)
    answer = result(*found, started=started)
    if name:
        SECTIONS[name] = answer
    return answer
