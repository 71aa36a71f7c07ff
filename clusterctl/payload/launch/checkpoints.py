"""The whole checkpoints in a run directory, as this node sees it, and the room for the next one.

ARGS: run_dir, timeout_s (for a file system that does not answer), waiting (the run, as launch/
waiting.py keeps it). Answers `complete`, names in the order in which they were made, or `error`;
`need` is what the last of them took while it was written, `room` what a save can take there now,
both in bytes, None where that is not known; `stopped` is who has ended the run (launch/stopped.py).
"""

import json
import os
import re

from clusterctl.payload.launch.stopped import found as mark_of
from clusterctl.payload.launch.waiting import renew
from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.proc_files import or_none, read_word
from clusterctl.payload.tools import call

NAME = re.compile(r"epoch\d+-global_step\d+$")
# These and the order are those of trainer/runlog/checkpoint_name.py, which a node may not have.
MANIFEST, LATEST = "manifest.json", "latest"
SERIAL = re.compile(
    rb'\s{0,9}\{\s{0,9}"schema":\s{0,9}\d{1,9},\s{0,9}"serial":\s{0,9}(\d{1,15})\s{0,9},'
)
ASIDE = ".tmp-"  # begins the names of folders that the next save deletes (trainer/checkpoint)
AVERAGE = "ema/"  # lies there twice for a while
MANIFEST_BYTES = 64 << 20


def main():
    found = call("", lambda: json.dumps(look()), ARGS["timeout_s"])
    answer = {"complete": [], "need": None, "room": None, "error": None}  # type: dict[str, Any]
    if found["state"] == "ended":
        answer.update(json.loads(found["out"]))
    elif found["state"] != "missing":  # missing: no directory, so none in it
        answer["error"] = found["err"]
    finish(dict(answer, stopped=who_stopped(answer["error"] is None)))


def who_stopped(answers):
    """Also for a run directory that does not answer: then nodes alone know. It is noted here that
    the run waits."""
    waiting = ARGS.get("waiting")
    if waiting is None:
        return None
    or_none(renew, waiting)
    place = ARGS["run_dir"] if answers else ""
    mark = call("", lambda: json.dumps(mark_of(waiting["run"], place)), ARGS["timeout_s"])
    return json.loads(mark["out"]) if mark["state"] == "ended" else None


def look():
    run_dir, made, unfinished = ARGS["run_dir"], [], []
    for name in os.listdir(run_dir):
        path = os.path.join(run_dir, name)
        if name.startswith(ASIDE):
            unfinished.append(path)
        elif NAME.match(name):
            manifest = os.path.join(path, MANIFEST)
            facts, head = or_none(os.stat, manifest), or_none(head_of, manifest)
            if facts is not None and head is not None:
                serial, step = SERIAL.match(head), int(name.rpartition("step")[2])
                made.append((int(serial.group(1)) if serial else 0, facts.st_mtime_ns, step, name))
    names = [name for _, _, _, name in sorted(made)]
    last = read_word(os.path.join(run_dir, LATEST))
    if last in names:
        names.remove(last)
        names.append(last)
    if not names:
        return {"complete": []}
    disk = or_none(os.statvfs, run_dir)
    room = disk and disk.f_bavail * disk.f_frsize + sum(map(taken, unfinished))
    return {"complete": names, "need": need(os.path.join(run_dir, names[-1])), "room": room}


def head_of(path):
    with open(path, "rb") as file:
        return file.read(200)


def need(checkpoint):
    try:
        with open(os.path.join(checkpoint, MANIFEST), "rb") as file:
            files = json.loads(file.read(MANIFEST_BYTES))["files"]
        sizes = {name: int(entry["size"]) for name, entry in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # a damaged one; the ranks say so
    return sum(sizes.values()) + sum(sizes[name] for name in sizes if name.startswith(AVERAGE))


def taken(folder):
    paths = (os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return sum(facts.st_blocks * 512 for facts in (or_none(os.stat, one) for one in paths) if facts)
