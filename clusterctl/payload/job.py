"""One launch of a job at a time on a node. Part of agent; ARGS are the agent's."""

import fcntl
import os
import time

MASTER_PATIENCE_S, PATIENCE_S = 0.5, 4.0

holding = []  # type: list[int]  # the descriptor of the job's lock


def local_folder():
    """On this node, never on the shared folder: a stalled mount must not look like a stalled rank."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"


def same_job():
    """Who does the same work here: two at once would write the same files.

    The lock is held as long as this agent lives and decides between two that start at the same
    moment; the tags find ranks whose agent is gone.
    """
    holder = take_job(MASTER_PATIENCE_S if ARGS["first_rank"] == 0 else PATIENCE_S)
    found = [holder] if holder else []
    for pid in all_pids():
        run, job, node, _ = tags(pid)
        if job == ARGS["job"] and run != ARGS["run"] and node == ARGS["node"]:
            found.append({"pid": pid, "run": run})
    return found


def take_job(patience_s):
    """Lock this job on this node; the holder when somebody else has it for longer than that.

    The first node has the least patience: of two launches one loses there, goes, and so frees the
    other nodes for the winner, whose agents still wait for them.
    """
    deadline = time.monotonic() + patience_s
    while True:
        lock = os.open(job_lock(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            run, _, pid = os.read(lock, 200).decode("utf-8", "replace").partition(" ")
            os.close(lock)
            if time.monotonic() > deadline:
                return {"run": run or "unknown", "pid": int(pid) if pid.isdigit() else None}
            time.sleep(0.05)
            continue
        if not is_file(lock, job_lock()):
            os.close(lock)  # the one before us has removed it meanwhile
            continue
        os.truncate(lock, 0)
        os.write(lock, ("%s %d" % (ARGS["run"], os.getpid())).encode())
        holding.append(lock)  # open: the kernel lets go of it when this process ends
        return None


def job_lock():
    return "%s/clusterctl-%d-%s-%s.lock" % (
        local_folder(),
        os.getuid(),
        ARGS["job"],
        ARGS["node"].replace("/", "_"),
    )


def is_file(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def leave_job():
    """Remove the lock while it is held, so that nobody waits for a file that is gone."""
    if holding:
        os.unlink(job_lock())
        os.close(holding.pop())
