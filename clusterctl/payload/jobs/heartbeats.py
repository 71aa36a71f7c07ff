"""What ranks report: heartbeats and clips (trainer/runlog/telemetry.py), handled signals."""

import json
import os
import re
import time

from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.jobs.processes import variable
from clusterctl.payload.proc_files import read_word


def handles(pid, number):
    """Whether a process has its own handler for a signal; without one many signals end it."""
    found = re.search(r"^SigCgt:\s*(\w+)", read_word("/proc/%d/status" % pid, ""), re.MULTILINE)
    return bool(found and int(found.group(1), 16) >> (number - 1) & 1)


def heartbeat(one, pid, rank):
    """{step, phase, age_s} of a trainer; None where it writes none."""
    beat = _json_of(one, "%s.json" % rank) or {}
    if beat.get("pid") != pid:
        return None  # of an attempt before this one
    step, phase = beat.get("step"), beat.get("phase")
    if type(step) is not int or not 0 <= step < 1 << 53 or not isinstance(phase, str):
        return None  # another program's format
    return {"step": step, "phase": phase[:40], "age_s": _age_s(beat)}


def clip(one, pid):
    """{path, age_s} of the file that a decoding process works on; None when it is idle."""
    work = _json_of(one, "clip-%d.json" % pid) or {}
    path = work.get("path")
    return {"path": path[:4096], "age_s": _age_s(work)} if path and isinstance(path, str) else None


def _age_s(data):
    return round(time.monotonic() - data["mono_s"], 3)


def _json_of(one, name):
    """A small file of the process's user in its folder; None where cut or another user's."""
    folder = variable(one, "CLUSTERCTL_HEARTBEATS")
    if not folder:
        return None
    try:
        descriptor = open_own(os.path.join(folder, name), os.O_RDONLY, uid=one.uid)
        with os.fdopen(descriptor, "rb") as file:
            data = json.loads(file.read(65536).rstrip(b"\0 \n"))
    except (OSError, ValueError, RecursionError):
        return None
    then_s = data.get("mono_s") if isinstance(data, dict) else None
    is_time = isinstance(then_s, (int, float)) and -1e12 < then_s < 1e12
    return data if is_time else None
