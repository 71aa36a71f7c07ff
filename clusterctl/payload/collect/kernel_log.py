"""Census: the lines of the kernel's log that matter.

Where this user may not read it, that is an error with its reason; with `sudo` in the arguments the tool is
tried with `sudo -n`, which never asks for a password.
"""

from __future__ import annotations

import re

from clusterctl.payload.prelude import SECTIONS, section

# The same words as checks.parsers.kernel_log.INTERESTING; a test compares them. Each begins with a
# letter as it stands: then a line is searched in 1 us, where one [Ll] among them makes it 2.4.
INTERESTING = (
    r"NVRM|SXid|fallen off|Out of memory|oom-kill|oom_reaper|Hardware Error|Machine check|lockup"
    r"|LOCKUP|blocked for more|read-only|nvme|I/O error|medium error|not responding|arrier"
    r"|Link (?:is )?(?:[Dd]own|[Uu]p)|link (?:is )?(?:[Dd]own|[Uu]p)|peermem|segfault|PCIe bandwidth"
)
LOG_LINES = 2000  # of the kernel's log that go home


def look_at_kernel_log(timeout_s, sudo):
    """dmesg, else the journal, else dmesg by sudo; only lines that mean something go home."""
    ways = [["dmesg"], ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"]]
    if sudo:
        ways.append(["sudo", "-n", "dmesg"])
    first = None
    for argv in ways:
        # The newest lines say what is wrong now; of a log that is longer than this they are kept.
        answer = section("kernel_log", argv, timeout_s, max_bytes=8 << 20, newest=True)
        if answer["rc"] == 0 and answer["out"].strip():
            keep_what_matters(answer)
            return
        first = first or answer
    SECTIONS["kernel_log"] = first


def keep_what_matters(answer):
    """Of a log's lines those that mean something, behind how many there were and the oldest of all."""
    lines = answer["out"].splitlines()
    if answer.get("truncated"):
        del lines[:1]  # a part of one
    wanted = re.compile(INTERESTING)
    kept = [line for line in lines if wanted.search(line)]
    first = lines[0][:200]
    if len(kept) > LOG_LINES:
        kept = kept[-LOG_LINES:]
        first, answer["truncated"] = kept[0][:200], True
    answer["out"] = "#lines\t%d\n#first\t%s\n%s" % (len(lines), first, "\n".join(kept))
