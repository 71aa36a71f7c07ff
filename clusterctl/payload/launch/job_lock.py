"""One launch of a job at a time on a node. ARGS are the agent's."""

import os
import time

from clusterctl.payload.files.locks import drop_lock, lock_path, take_lock
from clusterctl.payload.jobs.processes import all_pids, is_own, tags
from clusterctl.payload.prelude import ARGS

MASTER_PATIENCE_S, PATIENCE_S = 0.5, 4.0

holding = []  # type: list[tuple[int, str]]  # descriptor and path of the job's lock


def same_job():
    """Other runs of this job here, which would write the same files; locks the job."""
    holder = take_job(MASTER_PATIENCE_S if ARGS["first_rank"] == 0 else PATIENCE_S)
    found = [holder] if holder else []  # of two that start at the same time
    for pid in all_pids():
        run, job, node, _ = tags(pid)
        # A rank whose agent is gone.
        if job == ARGS["job"] and run != ARGS["run"] and node == ARGS["node"] and is_own(pid):
            found.append({"pid": pid, "run": run})
    return found


def take_job(patience_s):
    """Lock this job on this node; returns the holder when it keeps the lock for longer than that.

    The first node waits shortest: of two launches one loses there, ends, and so frees the other
    nodes for the winner, whose agents still wait. Raises OSError without a folder for the lock.
    """
    path = lock_path("job", ARGS["job"], ARGS["node"])
    deadline = time.monotonic() + patience_s
    while True:
        lock, holder = take_lock(path, "%s %d" % (ARGS["run"], os.getpid()))
        if lock is not None:
            holding.append((lock, path))
            return None
        if time.monotonic() > deadline:
            run, _, pid = holder.partition(" ")
            return {"run": run or "unknown", "pid": int(pid) if pid.isdigit() else None}
        time.sleep(0.05)


def leave_job():
    if holding:
        drop_lock(*holding.pop())
