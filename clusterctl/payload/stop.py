"""Ask a job's ranks on this node to save and end. Kills nothing.

ARGS: op, pick (jobs/find_job.py); look answers rows as kill does, each trainer with `asks`
(whether it has a handler for SIGTERM) and `beat`. stop takes targets [[pid, start]], timeout_s, and
as kill does `runs` and `who`; it sends SIGTERM once, and answers which are left and what was saved.
"""

import os
import re
import signal
import time

from clusterctl.payload.jobs.find_job import find_job, take_snapshot
from clusterctl.payload.jobs.heartbeats import handles, heartbeat
from clusterctl.payload.jobs.processes import describe
from clusterctl.payload.jobs.terminate import Victim
from clusterctl.payload.launch.waiting import waiting_for
from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import call

SAVED = re.compile(r"^epoch\d+-global_step\d+$")


def main():
    finish({"look": look, "stop": stop}[ARGS["op"]]())


def look():
    shot, found = take_snapshot(ARGS["pick"])
    for row in found["rows"]:
        if row["role"] == "trainer":
            row["asks"] = handles(row["pid"], signal.SIGTERM)
            row["beat"] = heartbeat(shot.seen[row["pid"]], row["pid"], row["rank"])
    return dict(found, waiting=waiting_for(ARGS["pick"]))


def stop():
    from clusterctl.payload.launch.stopped import end_runs, runs_of  # a look needs none

    started, wall_s = time.monotonic(), time.time()
    found = [or_none(Victim, pid, start) for pid, start in ARGS["targets"]]
    victims = list(filter(None, found))
    # Before the signal: a rank that ends by it must be known to have been asked.
    users = runs_of([victim.pid for victim in victims])
    unmarked = end_runs(ARGS.get("runs", ()), "stop", ARGS.get("who", ""), users)
    # SIGTERM would end a process that has lost its handler since then.
    refused = [victim.pid for victim in victims if not handles(victim.pid, signal.SIGTERM)]
    for victim in victims:
        if victim.pid not in refused:
            victim.send(signal.SIGTERM)
    deadline = started + ARGS["timeout_s"]
    while any(victim.state() for victim in victims) and time.monotonic() < deadline:
        time.sleep(0.1)
    saved = call("saved", lambda: newest_checkpoint(wall_s), 5.0)["out"] or None
    shot, rest, _ = find_job(ARGS["pick"])
    left = []
    for victim in victims:
        if victim.state() and victim.pid in shot.seen:
            row = describe(shot.facts[victim.pid])
            row["beat"] = heartbeat(shot.seen[victim.pid], victim.pid, row["rank"])
            row["why"] = "would die of SIGTERM without saving" if victim.pid in refused else ""
            left.append(row)
    return {
        "left": left,
        "unmarked": unmarked,
        "rest": len(rest) - len(left),  # launchers and loaders on their way out
        "asked": len(victims) - len(refused),
        "gone": len(found) - len(victims),
        "saved": saved,
        "seconds": round(time.monotonic() - started, 3),
    }


def newest_checkpoint(since_s):
    """Path of the newest whole checkpoint of the run that is younger than the request."""
    found = []
    for folder in ARGS.get("run_dirs") or ():
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if SAVED.match(name) and os.path.exists(path + "/manifest.json"):
                found.append((os.stat(path).st_mtime, path))
    # The file server's clock may differ.
    return max([pair for pair in found if pair[0] >= since_s - 5], default=(0, ""))[1]
