"""End processes that were listed before, and nothing else: TERM, grace, KILL, check.

A process is known by its id and start time; a signal goes through a pidfd opened before both are
compared, so that it never goes to another process with the same id.
"""

import ctypes
import errno
import os
import select
import signal
import time

from clusterctl.payload.jobs.processes import describe, is_frozen, process, start_of
from clusterctl.payload.proc_files import names_in, or_none

PIDFD_OPEN, PIDFD_SEND_SIGNAL = 434, 424  # Linux 5.3 and 5.1; the same numbers on x86 and ARM
LOOK_S = 0.1
HOLD_S = 1.0

_libc = ctypes.CDLL(None, use_errno=True)


class Victim:
    """One process that is to end. Raises ProcessLookupError when it is gone."""

    def __init__(self, pid, start):
        self.pid, self.start = pid, start
        self.refused = None  # why it cannot be signalled
        self.last = None  # signal that it was sent
        self.descriptor = _libc.syscall(PIDFD_OPEN, pid, 0)  # below 0: the kernel has no pidfds
        if start_of(pid) != start:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            raise ProcessLookupError(pid)

    def send(self, number):
        try:
            self.refused = None
            code = errno.ENOSYS
            if self.descriptor >= 0:
                failed = _libc.syscall(PIDFD_SEND_SIGNAL, self.descriptor, number, None, 0)
                code = ctypes.get_errno() if failed else 0
            if code not in (0, errno.ENOSYS):
                raise OSError(code, os.strerror(code))
            # An old kernel: between these two calls the id could become another process's.
            if code and start_of(self.pid) == self.start:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass
        except OSError as error:
            self.refused = error.strerror

    def state(self):
        """R, S, D, T …; None when it has ended. Z counts as ended unless it has live threads."""
        found = process(self.pid)
        if found is None or found.start != self.start or found.state == "X":
            return None
        return None if is_zombie(found) else found.state


class Ending:
    """Ends the approved processes and what they start.

    `sweep()` gives {pid: start} of the job as it is now. Approved is what the head has shown to
    its user; a process beyond that is taken only as a descendant, or a member of a session or
    process group that an approved process leads, or by the run's tag (`sweep` decides).
    """

    def __init__(self, approved, sweep):
        self.sweep = sweep
        self.victims = {}  # type: dict  # (pid, start) -> Victim
        self._take(approved)
        self.first = len(self.victims)
        # Those that had ended before, or whose id is another's now.
        self.missed = sum(key not in self.victims for key in approved)

    def _take(self, keys):
        for pid, start in keys:
            if (pid, start) not in self.victims:
                victim = or_none(Victim, pid, start)
                self.victims.update({(pid, start): victim} if victim else {})

    def alive(self):
        return [victim for victim in self.victims.values() if victim.state() is not None]

    def run(self, number, grace_s, kill_s):
        """Returns how many needed SIGKILL; what lives `kill_s` after it sleeps in the kernel."""
        forced = 0
        steps = [(number, grace_s)] if number != signal.SIGKILL else []
        for signal_number, patience_s in [*steps, (signal.SIGKILL, kill_s)]:
            if signal_number == signal.SIGKILL:
                self._hold()
            deadline = time.monotonic() + patience_s
            while True:
                self._take(self.sweep().items())
                alive = self.alive()
                if not alive:
                    return forced
                for victim in alive:
                    if victim.last != signal_number:
                        victim.last = signal_number
                        forced += signal_number == signal.SIGKILL
                        victim.send(signal_number)
                        if victim.state() == "T":
                            victim.send(signal.SIGCONT)  # a pending SIGTERM does not wake it
                if time.monotonic() >= deadline:
                    break
                self._wait(alive, min(LOOK_S, deadline - time.monotonic()))
        return forced

    def _hold(self):
        """Stop everything: a process that forks as it is killed leaves an unknown child."""
        deadline = time.monotonic() + HOLD_S
        while time.monotonic() < deadline:
            before = len(self.victims)
            self._take(self.sweep().items())
            running = [v for v in self.victims.values() if v.state() not in (None, *"TtDZ")]
            if not running and len(self.victims) == before:
                return
            for victim in running:
                victim.send(signal.SIGSTOP)
            time.sleep(0.005)

    def _wait(self, alive, timeout_s):
        poller = select.poll()
        for victim in alive:
            if victim.descriptor >= 0:
                poller.register(victim.descriptor, select.POLLIN)
        poller.poll(max(1.0, timeout_s * 1000))
        time.sleep(0.005)  # many end together: check all of them at once

    def survivors(self):
        found = [(victim, process(victim.pid)) for victim in self.alive()]
        rows = [(one, dict(describe(facts), state=one.state())) for one, facts in found if facts]
        return [dict(row, why=why_alive(victim, row)) for victim, row in rows]


def why_alive(victim, row):
    """One clause for people: what keeps a process."""
    if victim.refused:
        return "not permitted (%s): --sudo" % victim.refused
    state, waits_in = row["state"], row["waits_in"] or ""
    if "refrigerator" in waits_in or is_frozen(victim.pid):
        return "frozen by its cgroup: thaw it, then it ends"
    if state == "D":
        where = " in " + waits_in if waits_in else ""
        return "sleeps in the kernel%s, ends when that does or with a reboot" % where
    if state == "Z":
        return "its first thread has ended, others have not"
    return "did not end"


def zombies(keys):
    """Those of (pid, start) that have ended and wait for their parent to reap them."""
    found = [process(pid) for pid, _ in keys]
    return [
        {"pid": facts.pid, "ppid": facts.ppid, "command": facts.command}
        for facts in found
        if facts and (facts.pid, facts.start) in keys and is_zombie(facts)
    ]


def is_zombie(facts):
    """Whether all threads of a process have ended, and its parent has not reaped it."""
    return facts.state == "Z" and len(names_in("/proc/%d/task" % facts.pid)) <= 1
