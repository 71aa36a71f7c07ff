"""End what is left of a run on this node, and say what could not be ended.

ARGS: run, node (None: whatever node name the processes carry), grace_s, kill (False: only look).
Answers `found` (before) and `left` (after): lists of `describe`.
"""

import os

from clusterctl.payload.jobs.processes import describe, end_all, members, process
from clusterctl.payload.prelude import ARGS, finish


def main():
    run, node = ARGS["run"], ARGS.get("node")
    own = ancestors()

    def find():
        return members(run, node, without=own)

    found = [describe(facts) for facts in find().values()]
    left = found
    if found and ARGS.get("kill", True):
        left = end_all(find, ARGS.get("grace_s", 3.0))
    finish({"found": found, "left": left})


def ancestors():
    """This process and those above it: `reap` may be typed in a shell of the run itself."""
    chain, pid = [], os.getpid()
    while pid > 1:
        chain.append(pid)
        facts = process(pid)
        pid = facts.ppid if facts else 0
    return chain
