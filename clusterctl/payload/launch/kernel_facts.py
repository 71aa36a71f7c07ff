"""What the kernel says about the end of a rank: processes that it ended for memory, Xid lines."""

import os
import re
import time

from clusterctl.payload.proc_files import or_none, read_word
from clusterctl.payload.tools import section
from clusterctl.payload.watching.kernel_log import KernelLog

JOURNAL = "journalctl -k -b -q -n 2000 --no-pager -o short-monotonic"
JOURNAL_S = 3.0
SIGKILL = -9
CGROUPS = "/sys/fs/cgroup"
# As torch's DataLoader and our own one say that a worker was killed.
WORKER_KILLED = re.compile(
    r"is killed by signal: Killed|exited unexpectedly|decoding processes were killed"
)


class KernelFacts:
    """Since its making. `pid` is a process in the ranks' memory cgroup."""

    def __init__(self, pid, kmsg="/dev/kmsg"):
        self.began_s = time.monotonic()
        self.log = KernelLog()
        self.kmsg = or_none(os.open, kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if self.kmsg is not None:
            or_none(os.lseek, self.kmsg, 0, os.SEEK_END)
        self.path, self.count = oom_count(pid)

    def of_death(self, rank, code, tail):
        """A fact where the kernel has ended this rank, or a worker of its loader; else None.

        Each process that it has ended explains one death.
        """
        if code != SIGKILL and not any(map(WORKER_KILLED.search, tail)):
            return None
        count = read_count(self.path)
        if count is None or count <= self.count:
            return None
        text = "oom_kill in %s grew from %d to %d" % (self.path, self.count, count)
        self.count += 1
        return {"type": "fact", "kind": "oom-kernel", "rank": rank, "text": text, "age_s": 0.0}

    def xids(self, is_last=False):
        """New lines of the driver; where only the journal has them, at the end of an attempt."""
        if self.kmsg is not None:
            self.log.drain(self.kmsg)
        elif is_last:
            answer = section("", JOURNAL.split(), JOURNAL_S, newest=True)
            self.log.take_journal(answer["out"])
        facts = []
        for ago_s, address, code, words in self.log.new_lines():
            if ago_s <= round(time.monotonic() - self.began_s, 1):  # both in tenths
                text = "NVRM: Xid (PCI:%s): %d, %s" % (address, code, words)
                facts.append({"type": "fact", "kind": "xid", "detail": str(code), "text": text})
                facts[-1]["age_s"] = ago_s
        return facts


def oom_count(pid):
    """(file, count) of the processes that the kernel has ended in a process's memory cgroup.

    Where that shows no count, as at the root of version 2, the machine's. (None, None) without any.
    """
    files = []
    for line in (read_word("/proc/%d/cgroup" % pid) or "").splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if "memory" in controllers.split(","):
            folder, name = CGROUPS + "/memory", "memory.oom_control"
        elif number == "0":
            folder, name = CGROUPS, "memory.events"
        else:
            continue
        # The second in a container, which has its own cgroup mounted there.
        files += ["%s%s/%s" % (folder, path.rstrip("/"), name), "%s/%s" % (folder, name)]
    for file in (*files, "/proc/vmstat"):
        count = read_count(file)
        if count is not None:
            return file, count
    return None, None


def read_count(path):
    found = re.search(r"^oom_kill (\d+)$", read_word(path) or "", re.MULTILINE) if path else None
    return int(found.group(1)) if found else None
