"""End what is left of a run on this node, its agent too, and report what could not be ended.

ARGS: run, node (None: whatever node name the processes carry), grace_s, kill (False: only look),
keep_standby (True: the starter that keeps torch imported for the next attempt is left alone),
run_dir (None: an attempt may follow; else the run is over, and so are its marks), head (who asks;
None where the run's owner has ended it).
Answers `found` (before) and `left` (after): lists of `describe`, and `supervised`: the head that
speaks to the run's agents here, if it is another one. Then nothing was ended.
"""

import os

from clusterctl.payload.jobs.processes import chain_above, describe, end_all, members, process
from clusterctl.payload.launch.about import clean, spoken_to
from clusterctl.payload.launch.session import agents_of
from clusterctl.payload.launch.starter import standbys
from clusterctl.payload.launch.stopped import forget
from clusterctl.payload.launch.waiting import drop
from clusterctl.payload.prelude import ARGS, finish
from clusterctl.payload.tools import call

FORGET_S = 3.0  # a run directory may not answer


def main():
    own = chain_above(os.getpid())  # `reap` may be typed in a shell of the run itself
    starters = standbys(ARGS["run"], ARGS.get("node"))
    spared = own + starters if ARGS.get("keep_standby") else own

    def find():
        found = members(ARGS["run"], ARGS.get("node"), starters, without=spared)
        agents = {pid: process(pid) for pid in agents_of(ARGS["run"], ARGS.get("node"))}
        found.update({pid: one for pid, one in agents.items() if one})
        return found

    found = left = [describe(facts) for facts in find().values()]
    asks, supervised = ARGS.get("head"), None
    if asks is not None:
        heads = spoken_to(ARGS["run"], ARGS.get("node"))
        supervised = next((head for head in heads if head != asks), None)
    ends = ARGS.get("kill", True) and supervised is None
    if found and ends:
        left = end_all(find, ARGS.get("grace_s", 3.0))
    if ends:
        clean(ARGS["run"])
        if ARGS.get("run_dir"):
            drop(ARGS["run"])
            call("", lambda: forget(ARGS["run"], ARGS["run_dir"]), FORGET_S)
    finish({"found": found, "left": left, "supervised": supervised})
