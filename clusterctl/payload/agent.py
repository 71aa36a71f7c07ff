"""Start a node's ranks, watch them, stop them, check that they are gone. Runs until stdin closes.

ARGS are those of `LaunchPlan.agent_args`. Sends `hello` (this node's properties), waits for
`{"op": "start", …}`, then sends ranks, heartbeats, telemetry and logs, one JSON line each, and
ends with `gone`. `{"op": "stop", "grace_s": s}` stops the ranks in order; so does the end of stdin,
or silence of the head for `lease_s`.
"""

import ctypes
import json
import os
import queue
import shutil
import threading
import time

from clusterctl.payload.files.locks import drop_lock, lock_path, take_lock
from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.jobs.processes import is_own, tags
from clusterctl.payload.launch.ranks import END, Ranks, end_members, run_file
from clusterctl.payload.launch.rendezvous import RendezvousListener, own_addresses, probe_port
from clusterctl.payload.prelude import ARGS, hold_lease, on_signals
from clusterctl.payload.proc_files import all_pids, read_word
from clusterctl.payload.tools import in_thread

PR_SET_CHILD_SUBREAPER = 36
MASTER_PATIENCE_S, PATIENCE_S = 0.5, 4.0  # for the lock of a job
FLUSH_S = 3.0  # for the last messages, when the head reads slowly or not at all
BACKLOG = 50  # unsent messages, above which logs and telemetry wait

# A SimpleQueue: a signal handler puts into it, which may deadlock with queue.Queue.
orders = queue.SimpleQueue()  # type: Any
holding = []  # type: list[tuple[int, str]]  # descriptor and path of the job's lock


def end(*_):
    orders.put(END)


class AsyncWriter:
    """Sends messages to the head from its own thread, so that the agent never waits for a reader.

    With a cut cable the pipe fills up and a write never returns; with a head that is gone it fails.
    Neither may keep the agent from stopping its ranks.
    """

    def __init__(self):
        self._waiting = queue.SimpleQueue()  # type: Any
        self.is_lost = False

    def send(self, message):
        if not self.is_lost:
            self._waiting.put(json.dumps(message).encode() + b"\n")

    def is_behind(self):
        return self.is_lost or self._waiting.qsize() > BACKLOG

    def flush(self):
        """Wait until everything has been sent, FLUSH_S at most."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait(FLUSH_S)

    def send_forever(self):
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                while item and not self.is_lost:
                    item = item[os.write(1, item) :]
            except OSError:
                self.is_lost = True
                end()


writer = AsyncWriter()
emit = writer.send


def main():
    in_thread(writer.send_forever)
    try:
        supervise()
    finally:
        if holding:
            drop_lock(*holding.pop())
        writer.flush()


def supervise():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    on_signals(end)
    hold_lease(orders.put, end)
    # Files of ranks are for their user alone, or for the group that the user has named.
    os.umask(0o027 if ARGS["group"] else 0o077)
    refused = "no job can be started here"
    try:
        refuse_made_by_others(ARGS["python"], ARGS["workdir"])
        busy = same_job()
        refused = "no run directory can be made"
        shared = is_shared()
    except OSError as error:
        emit({"type": "failed", "text": "%s: %s" % (refused, error)})
        return
    # On the first node only: elsewhere an address such as 127.0.0.1 would work on every node.
    listener = RendezvousListener(ARGS["ports"] if ARGS["first_rank"] == 0 else (), ARGS["word"])
    hello = {"type": "hello", "shared": shared, "same_job": busy, "port": listener.port}
    hello.update(addresses=own_addresses(), cores=len(os.sched_getaffinity(0)))
    hello["python_found"] = os.access(ARGS["python"], os.X_OK)
    hello["workdir_found"] = os.path.isdir(ARGS["workdir"])
    emit(hello)
    order = start_order()
    listener.close()
    emit({"type": "gone", "left": run_ranks(order, shared) if order else []})


def run_ranks(order, shared):
    """Start the ranks and watch them until they have ended; returns what is left of them."""
    ranks = Ranks(shared, writer, next_order)
    try:
        try:
            ranks.start(order)
        except OSError as error:
            emit({"type": "failed", "text": "cannot start %s: %s" % (order["argv"][0], error)})
            return []
        emit({"type": "started", "pid": ranks.child.pid})
        return ranks.watch()
    except BaseException:
        end_members(ARGS["fail_grace_s"])  # the ranks must not outlive this program
        raise
    finally:
        shutil.rmtree(ranks.beats, ignore_errors=True)


def next_order(timeout_s):
    """The head's next order, END when it has gone; None after `timeout_s`."""
    try:
        return orders.get(timeout=timeout_s)
    except queue.Empty:
        return None


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


def is_shared():
    """Whether the head's run directory is visible here; makes one if not. Raises OSError."""
    run_dir = ARGS["run_dir"]
    os.makedirs(run_dir, 0o700, exist_ok=True)
    owners = [read_word(run_file(name)) for name in (".run-id", ".run-id-here")]
    is_heads = owners[0] == ARGS["run"]
    # Of a run whose files the head cannot see the logs would be mixed with this one's.
    strangers = [run for run in owners if run not in (None, ARGS["run"])]
    if strangers and not is_heads:
        raise OSError("%s is not the head's and holds run %s" % (run_dir, strangers[0]))
    if ARGS["group"] and not is_heads:
        try:
            shutil.chown(run_dir, group=ARGS["group"])
        except LookupError:
            raise OSError("there is no group %s on this node" % ARGS["group"]) from None
        os.chmod(run_dir, 0o2750)  # also for what is made in there
    folders = [run_file(name) for name in ("ranks", "stacks", "samples")]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    refuse_made_by_others(*folders)
    if not is_heads:
        with open(run_file(".run-id-here"), "w") as file:
            file.write(ARGS["run"])
    return is_heads


def start_order():
    """Answer the head until it sends start; None when it sends something else, or nothing."""
    while True:
        order = next_order(ARGS["lease_s"])
        if order is None or order["op"] not in ("ping", "probe", "start"):
            return None
        if order["op"] == "start":
            return order
        if order["op"] == "probe":
            port, names = order["port"], order["addresses"]
            errors = {name: probe_port(name, port, ARGS["word"]) for name in names}
            emit({"type": "probed", "errors": errors})
