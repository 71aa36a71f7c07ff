"""Census: the lines of the kernel's log that matter, or why it cannot be read."""

import re

from clusterctl.payload.tools import SECTIONS, section

# As checks.parsers.kernel_log.INTERESTING; a test compares them. Each alternative begins with a
# literal: a line is then searched in 1 us, but in 2.4 with one [Ll] among them.
INTERESTING = (
    r"NVRM|SXid|fallen off|Out of memory|oom-kill|oom_reaper|Hardware Error|Machine check|lockup"
    r"|LOCKUP|blocked for more|read-only|nvme|I/O error|medium error|not responding|arrier"
    r"|Link (?:is )?(?:[Dd]own|[Uu]p)|link (?:is )?(?:[Dd]own|[Uu]p)|peermem|segfault"
    r"|PCIe bandwidth"
)
LOG_LINES = 2000  # of the kernel's log that are sent


def look_at_kernel_log(timeout_s, sudo):
    """dmesg, else the journal, else dmesg by sudo.

    Sends the lines that matter, after the number of all and the oldest of them.
    """
    ways = ["dmesg", "journalctl -k -b -q --no-pager -o short-monotonic", "sudo -n dmesg"]
    first = None
    for way in ways if sudo else ways[:2]:
        # Of a longer log the newest lines are kept.
        answer = section("kernel_log", way.split(), timeout_s, max_bytes=8 << 20, newest=True)
        if answer["rc"] == 0 and answer["out"].strip():
            lines = answer["out"].splitlines()[1 if answer.get("truncated") else 0 :]
            wanted = re.compile(INTERESTING)
            kept = [line for line in lines if wanted.search(line)]
            first = lines[0][:200]
            if len(kept) > LOG_LINES:
                kept = kept[-LOG_LINES:]
                first, answer["truncated"] = kept[0][:200], True
            answer["out"] = "#lines\t%d\n#first\t%s\n%s" % (len(lines), first, "\n".join(kept))
            return
        first = first or answer
    SECTIONS["kernel_log"] = first
