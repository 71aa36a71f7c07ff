"""One launch of a job at a time on a node. ARGS are the agent's."""

import os
import time

from clusterctl.payload.files.locks import drop_lock, lock_path, take_lock
from clusterctl.payload.jobs.processes import all_pids, is_own, tags
from clusterctl.payload.prelude import ARGS

MASTER_PATIENCE_S, PATIENCE_S = 0.5, 4.0

holding = []  # type: list[tuple[int, str]]  # descriptor and path of the job's lock


def same_job():
    """Who does the same work here: two at once would write the same files.

    The lock is held as long as this agent lives and decides between two that start at the same
    moment; the tags find ranks whose agent is gone.
    """
    holder = take_job(MASTER_PATIENCE_S if ARGS["first_rank"] == 0 else PATIENCE_S)
    found = [holder] if holder else []
    for pid in all_pids():
        run, job, node, _ = tags(pid)
        if job == ARGS["job"] and run != ARGS["run"] and node == ARGS["node"] and is_own(pid):
            found.append({"pid": pid, "run": run})
    return found


def take_job(patience_s):
    """Lock this job on this node; the holder when somebody else has it for longer than that.

    The first node has the least patience: of two launches one loses there, goes, and so frees the
    other nodes for the winner, whose agents still wait for them. Raises OSError without a folder for
    the lock.
    """
    path = lock_path("job", ARGS["job"], ARGS["node"])
    deadline = time.monotonic() + patience_s
    while True:
        lock, said = take_lock(path, "%s %d" % (ARGS["run"], os.getpid()))
        if lock is not None:
            holding.append((lock, path))
            return None
        if time.monotonic() > deadline:
            run, _, pid = said.partition(" ")
            return {"run": run or "unknown", "pid": int(pid) if pid.isdigit() else None}
        time.sleep(0.05)


def leave_job():
    if holding:
        drop_lock(*holding.pop())
