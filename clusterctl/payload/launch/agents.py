"""The agents of this user on this node, and where their ranks are.

ARGS: run (None: of all runs). Answers `agents`: for each what about.py says, and step and phase of
the rank that is furthest behind; `waiting`, the runs that are between two attempts; `unread`: why
that is not known of other agents, such as those that another version of clusterctl has started.
"""

import glob
import json
import os

from clusterctl.payload.launch.about import living_agents
from clusterctl.payload.launch.session import living
from clusterctl.payload.launch.waiting import waiting_runs
from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.proc_files import read_bytes

TEXT, NUMBER = (str,), (int, float)
SHOWN = {}  # type: dict[str, tuple]
SHOWN.update(dict.fromkeys(("run", "node", "job", "run_dir", "state", "head"), TEXT))
SHOWN.update(dict.fromkeys(("attempt", "first_rank", "slots"), (int,)))
SHOWN.update(lease_s=NUMBER, since_s=NUMBER, alone_since_s=NUMBER + (type(None),))
STATES = ("waiting", "running", "ended")


def main():
    agents, unread = [], []
    for path, facts in living_agents():
        wrong = fault(facts)
        if not wrong and ARGS["run"] in (None, facts["run"]):
            agents.append(dict({name: facts[name] for name in SHOWN}, **least(facts)))
        elif wrong and is_asked_for(path):
            unread.append("agent of process %s: %s" % (living(path), wrong))
    waiting = [one for one in waiting_runs([os.getuid()]) if ARGS["run"] in (None, one["run"])]
    finish({"agents": agents, "unread": unread, "waiting": waiting})


def fault(facts):
    """Why an agent's own words are not understood; "" where they are."""
    if facts is None:
        return "it has just begun, or ends"
    wrong = [name for name in SHOWN if type(facts.get(name, ())) not in SHOWN[name]]
    if not wrong and facts["state"] in STATES and type(facts.get("beats")) is str:
        return ""
    return "it is of another version of clusterctl (%s)" % (wrong or ["state"])[0]


def is_asked_for(path):
    return ARGS["run"] is None or "-%s-" % ARGS["run"][-24:] in path


def least(agent):
    beats = []
    for path in glob.glob(glob.escape(agent["beats"]) + "/*.json") if agent["beats"] else []:
        try:
            beat = json.loads(read_bytes(path) or b"")
            beats.append((int(beat["step"]), str(beat["phase"])[:40]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    step, phase = min(beats, default=(None, None))
    return {"step": step, "phase": phase}
