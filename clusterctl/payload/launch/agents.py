"""The agents of this user on this node, and where their ranks are.

ARGS: run (None: of all runs). Answers `agents`: for each what about.py says, and step and phase of
the rank that is furthest behind; and `waiting`, the runs that are between two attempts.
"""

import glob
import json
import os

from clusterctl.payload.launch.about import NAMES, living_agents
from clusterctl.payload.launch.waiting import waiting_runs
from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.proc_files import read_bytes

SHOWN = NAMES + ("since_s", "state", "head", "alone_since_s")


def main():
    agents = [one for one in living_agents() if ARGS["run"] in (None, one["run"])]
    found = [dict({name: one[name] for name in SHOWN}, **least(one)) for one in agents]
    waiting = [one for one in waiting_runs([os.getuid()]) if ARGS["run"] in (None, one["run"])]
    finish({"agents": found, "waiting": waiting})


def least(agent):
    beats = []
    for path in glob.glob(glob.escape(agent["beats"]) + "/*.json") if agent["beats"] else []:
        try:
            beat = json.loads(read_bytes(path) or b"")
            beats.append((int(beat["step"]), str(beat["phase"])[:40]))
        except (ValueError, KeyError, TypeError):
            continue
    step, phase = min(beats, default=(None, None))
    return {"step": step, "phase": phase}
