"""What ranks report about themselves: heartbeats, the current clip, handled signals.

Heartbeats are the files of trainer/runlog/telemetry.py in the folder CLUSTERCTL_HEARTBEATS.
"""

import json
import os
import time

from clusterctl.payload.files.private import open_own
from clusterctl.payload.jobs.processes import variable
from clusterctl.payload.prelude import read_text


def handles(pid, number):
    """Whether a process has its own handler for a signal; without one many signals end it."""
    try:
        for line in read_text("/proc/%d/status" % pid).splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def heartbeat(one, pid, rank):
    """{step, phase, age_s} of a trainer; None where it writes none."""
    beat = _json_of(one, "%s.json" % rank)
    if beat is None or beat.get("pid") != pid:
        return None  # of an attempt before this one
    step, phase = beat.get("step"), beat.get("phase")
    if type(step) is not int or not 0 <= step < 1 << 53 or not isinstance(phase, str):
        return None  # of a program with a format of its own
    return {"step": step, "phase": phase[:40], "age_s": _age_s(beat)}


def clip(one, pid):
    """{path, age_s} of the file that a decoding process works on; None when it is idle."""
    work = _json_of(one, "clip-%d.json" % pid)
    if work is None or not isinstance(work.get("path"), str) or not work["path"]:
        return None
    return {"path": work["path"][:4096], "age_s": _age_s(work)}


def _age_s(data):
    return round(time.monotonic() - data["mono_s"], 3)


def _json_of(one, name):
    """A small file of the process's user in its folder; None where cut or another user's."""
    folder = variable(one, "CLUSTERCTL_HEARTBEATS")
    if not folder:
        return None
    try:
        with os.fdopen(
            open_own(os.path.join(folder, name), os.O_RDONLY, uid=one.uid), "rb"
        ) as file:
            data = json.loads(file.read(65536).rstrip(b"\0 \n"))
    except (OSError, ValueError, RecursionError):
        return None
    then_s = data.get("mono_s") if isinstance(data, dict) else None
    is_time = isinstance(then_s, (int, float)) and -1e12 < then_s < 1e12
    return data if is_time else None
