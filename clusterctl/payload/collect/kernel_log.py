"""Census: lines of the kernel's log, by dmesg or the journal."""

import re

from clusterctl.payload.tools import SECTIONS, section

LOG_LINES = 2000  # that are sent


def collect_kernel_log(timeout_s, sudo, wanted):
    """dmesg, else the journal, else dmesg by sudo.

    Sends the lines in which `wanted` is found, after the number of all and the oldest of them.
    """
    ways = ["dmesg", "journalctl -k -b -q --no-pager -o short-monotonic", "sudo -n dmesg"]
    first = None
    for way in ways if sudo else ways[:2]:
        # Of a longer log the newest lines are kept.
        answer = section("kernel_log", way.split(), timeout_s, max_bytes=8 << 20, newest=True)
        if answer["rc"] == 0 and answer["out"].strip():
            lines = answer["out"].splitlines()[1 if answer.get("truncated") else 0 :]
            kept = list(filter(re.compile(wanted).search, lines))
            first = lines[0][:200]
            if len(kept) > LOG_LINES:
                kept = kept[-LOG_LINES:]
                first, answer["truncated"] = kept[0][:200], True
            answer["out"] = "#lines\t%d\n#first\t%s\n%s" % (len(lines), first, "\n".join(kept))
            return
        first = first or answer
    SECTIONS["kernel_log"] = first
