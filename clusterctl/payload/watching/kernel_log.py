"""New Xid lines of the kernel's log: from /dev/kmsg, else from the journal."""

import os
import re
import signal
import subprocess
import threading
import time
from functools import partial

from clusterctl.payload.tools import forget_tool, start_tool

XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})[^)]{0,40}\): (\d{1,4})\b,?\s*([^\n]*)"
)
# `NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus`, or three lines, which /dev/kmsg has as one:
# `NVRM: The NVIDIA GPU 0000:b3:00.0`, `(PCI ID: …) installed in this system has`, the words.
ADDRESS = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9A-Fa-f:.]{7,20})")
OFF_BUS = "fallen off the bus"
LONGEST = 4000
RECENT_S = 3600.0  # older lines are not reported
LINES = 20  # at most in one message: a card may log thousands
TEXT = 160
LOOK_S = 1.0


class KernelLog:
    """`why` is the reason why there is none; `new_lines()` gives each line once.

    A log counts as read from its first line on: the kernel's is never empty, and journalctl without
    permission prints nothing and keeps running.
    """

    def __init__(self):
        self.why = "no line of the kernel's log has been read yet"
        self.first_answer = threading.Event()
        self._lock = threading.Lock()
        self._named = ""  # address of the GPU that the driver named last
        self._found = []  # [monotonic of the event, address, code, text]

    def new_lines(self):
        """[seconds ago, address, code, text] since the last call; of many the newest."""
        with self._lock:
            found, self._found = self._found, []
        now = time.monotonic()
        return [[round(now - line[0], 1)] + line[1:] for line in found]

    def read_forever(self):
        try:
            self._read_kmsg(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
            why = "/dev/kmsg is empty"
        except OSError as error:
            why = "/dev/kmsg: %s" % error.strerror
        self._follow_journal(why)

    def _read_kmsg(self, descriptor):
        """Ends only where it is /dev/null under another name, as in some containers."""
        while self.drain(descriptor):
            self.first_answer.set()
            time.sleep(LOOK_S)
        os.close(descriptor)

    def drain(self, descriptor):
        """Take what /dev/kmsg has now; False at the end of a file, which it does not have."""
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                return True
            except BrokenPipeError:
                continue  # older lines were overwritten before we came
            if not record:
                return False
            head, _, text = record.decode("utf-8", "replace").partition(";")
            words = head.split(",")
            stamp_s = int(words[2]) / 1e6 if len(words) > 2 and words[2].isdigit() else None
            self._take(text.split("\n", 1)[0], stamp_s)

    def _follow_journal(self, why):
        import ctypes

        self.why = "%s; journalctl shows no line of the kernel's log" % why
        argv = "journalctl -k -b -q -f -n 2000 --no-pager -o short-monotonic".split()
        libc = ctypes.CDLL(None)
        try:
            # It writes nothing, and so does not notice that its reader is gone.
            end_too = partial(libc.prctl, 1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            child = start_tool(argv, stderr=subprocess.DEVNULL, preexec_fn=end_too)
        except OSError as error:
            self.why = "%s; journalctl: %s" % (why, error.strerror)
            self.first_answer.set()
            return
        try:
            for line in child.stdout:
                self.take_journal(line.decode("utf-8", "replace"))
        finally:
            forget_tool(child)
            child.stdout.close()
        self.why = "%s; journalctl ended (%s)" % (why, child.wait())

    def take_journal(self, lines):
        """Take lines of `journalctl -o short-monotonic`."""
        for line in lines.splitlines():
            found = re.match(r"\[\s*(\d+\.\d+)\]", line)
            if found:  # else it is a message of journalctl itself
                self._take(line, float(found.group(1)))

    def _take(self, text, stamp_s):
        """Keep a line about an Xid; `stamp_s` is the kernel's, None where it has none."""
        if self.why:
            self.why = ""
            self.first_answer.set()
        text = text[:LONGEST]
        address = ADDRESS.search(text)
        if address:
            self._named = address.group(1).rstrip(":.")
        found = XID.search(text)
        # A card off the bus may log no number (NVSentinel #155); 79 is the one for this.
        is_off = found is None and OFF_BUS in text and "NVRM" in text and self._named
        now = time.monotonic()
        # The kernel's stamps count like the monotonic clock, from boot, without suspends.
        at_s = now if stamp_s is None else min(now, stamp_s)
        if now - at_s > RECENT_S or not (found or is_off):
            return
        line = [self._named, 79, "GPU has fallen off the bus"]
        if found:
            line = [found.group(1), int(found.group(2)), found.group(3).strip()[:TEXT]]
        with self._lock:
            self._found.append([at_s] + line)
            del self._found[:-LINES]
