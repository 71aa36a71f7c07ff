"""Start a node's ranks, watch them, stop them, check that they are gone.

ARGS are those of `LaunchPlan.agent_args`, and `resume` for a head that comes back. The agent lives
apart from the ssh session that started it (launch/session.py). It sends `hello` (this node's
properties), waits for `{"op": "start", …}`, then sends ranks, heartbeats, telemetry and logs, one
JSON line each, and `gone` at the end, which `{"op": "bye"}` confirms. `{"op": "stop"}` with
`grace_s` stops the ranks in order; so does silence of the head for `lease_s`, and a signal to the
agent, of which it says `leaving`. `stopped` says that the run's owner has ended it.
"""

import ctypes
import os
import queue
import shutil
import signal
import time

from clusterctl.payload.files.locks import drop_lock, take_lock
from clusterctl.payload.files.ownership import refuse_made_by_others, refuse_open_folder
from clusterctl.payload.files.private import lock_path
from clusterctl.payload.jobs.processes import is_own, tags
from clusterctl.payload.launch.about import About, head_of
from clusterctl.payload.launch.logout import leave_session
from clusterctl.payload.launch.ranks import END, Ranks, end_members
from clusterctl.payload.launch.rendezvous import RendezvousListener, own_addresses, probe_port
from clusterctl.payload.launch.run_folder import make_run_dir
from clusterctl.payload.launch.session import HeadLink, agents_of, fork_agent, relay, socket_path
from clusterctl.payload.launch.starter import end_idle, end_standby
from clusterctl.payload.launch.stopped import TOLD, found
from clusterctl.payload.launch.waiting import drop
from clusterctl.payload.prelude import ARGS, emit, on_signals
from clusterctl.payload.proc_files import all_pids

PR_SET_CHILD_SUBREAPER = 36
MASTER_PATIENCE_S, PATIENCE_S = 0.5, 4.0  # for the lock of a job
LEAVING = "its agent was told to end (SIGTERM): the machine goes down, or somebody ended it"
UNSTARTED_S = 60.0  # without a word of the head, before the start; it pings every few seconds

# A SimpleQueue: a signal handler puts into it, which may deadlock with queue.Queue. Each handler
# puts something, since otherwise `get` may wait forever (tests/lint.py).
orders = queue.SimpleQueue()  # type: Any
holding = []  # type: list[tuple[int, str]]  # descriptor and path of the job's lock
running = []  # type: list[Ranks]  # which need no head once they have started
connections = []  # type: list[HeadLink]
abouts = []  # type: list[About]
signalled = []  # type: list[bool]  # to end without a head's word
said = []  # type: list[bool]  # that it was signalled


def end(*_):
    signalled.append(True)
    orders.put(END)


def be_told(*_):
    """Somebody has left the mark of launch/stopped.py."""
    orders.put({"op": "told"})


def main():
    path = socket_path(ARGS["run"], ARGS["node"])
    try:
        if ARGS["resume"] is None:
            fork_agent(path, live)
        relay(path, ARGS["word"], ARGS["resume"], ARGS["head"])
    except OSError as error:
        head = head_of(path) if ARGS["resume"] is None else ""
        if head and head != ARGS["head"]:  # the run's agent lives, and has another head
            emit({"type": "supervised", "head": head})
        else:
            emit({"type": "failed", "text": "its agent has ended (%s)" % error.strerror})


def live(listener):
    """The agent's life, in a process of its own."""
    about = About(socket_path(ARGS["run"], ARGS["node"]))
    abouts.append(about)
    about.change()
    head = HeadLink(listener, ARGS["word"], orders, lose_head, about.heard)
    connections.append(head)
    try:
        supervise(head)
        if not say_goodbye(head) and running and not signalled:
            end_standby(socket_path(ARGS["run"], ARGS["node"], "starter"))  # nobody starts again
    finally:
        if holding:
            drop_lock(*holding.pop())
        head.flush()
        about.close()


def lose_head():
    """Before the start there is nothing that could go on without a head."""
    abouts[0].alone()
    if not running:
        orders.put(END)


def say_goodbye(head):
    """Wait until the head has got all, or has not come back for the lease; whether it has."""
    lease_s = ARGS["lease_s"] if running else min(ARGS["lease_s"], UNSTARTED_S)
    deadline = time.monotonic() + lease_s
    while not signalled and (running or head.is_connected or not head.was_connected):
        order = next_order(max(0.0, deadline - time.monotonic()))
        if order is None or order["op"] in ("bye", "end"):
            return order is not None and order["op"] == "bye"
    return False


def supervise(head):
    emit = head.send
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    on_signals(end)
    signal.signal(TOLD, be_told)
    refused = "no job can be started here"
    try:
        refuse_made_by_others(ARGS["python"], ARGS["workdir"])
        refuse_open_folder(ARGS["workdir"])
        busy = same_job()
        refused = "no run directory can be made"
        shared = make_run_dir()
    except OSError as error:
        emit({"type": "failed", "text": "%s: %s" % (refused, error)})
        return
    drop(ARGS["run"])
    if say_stopped(head):
        return
    # On the first node only: elsewhere an address such as 127.0.0.1 would work on every node.
    listener = RendezvousListener(
        ARGS["ports"] if ARGS["first_rank"] == 0 else (), ARGS["port_word"]
    )
    hello = {"type": "hello", "shared": shared, "same_job": busy, "port": listener.port}
    hello.update(addresses=own_addresses(), cores=len(os.sched_getaffinity(0)))
    hello["python_found"] = os.access(ARGS["python"], os.X_OK)
    hello["workdir_found"] = os.path.isdir(ARGS["workdir"])
    hello["ends_at_logout"] = leave_session()
    emit(hello)
    order = start_order(emit)
    listener.close()
    emit({"type": "gone", "left": run_ranks(head, order, shared) if order else []})


def say_stopped(head):
    """Whether the owner of this run has ended it; by whom, or None."""
    mark = found(ARGS["run"], ARGS["run_dir"])
    if mark is not None:
        head.send(dict(mark, type="stopped"))
    return mark and mark["by"]


def run_ranks(head, order, shared):
    """Start the ranks and watch them until they have ended; returns what is left of them."""
    emit = head.send
    ranks = Ranks(shared, head, next_order)
    running.append(ranks)
    try:
        try:
            ranks.start(order)
        except OSError as error:
            emit({"type": "failed", "text": "cannot start %s: %s" % (order["argv"][0], error)})
            return []
        abouts[0].change(state="running", beats=ranks.beats)
        left = ranks.watch()
        abouts[0].change(state="ended")
        return left
    except BaseException:
        end_members(ARGS["fail_grace_s"])  # the ranks must not outlive this program
        raise
    finally:
        shutil.rmtree(ranks.beats, ignore_errors=True)


def next_order(timeout_s):
    """The head's next order; None after `timeout_s`. A new head is connected and given the rest."""
    try:
        order = orders.get(timeout=timeout_s)
    except queue.Empty:
        return None
    (head,) = connections
    if order["op"] == "told":
        return dict(order, by=say_stopped(head))
    if order == END and signalled and not said:
        said.append(True)
        head.send({"type": "leaving", "text": LEAVING})
    if order["op"] == "connect":
        if not head.connect(order):
            return {"op": "ping"}
        abouts[0].connected(order["head"])
        resume = order["resume"] or {"seen": 0, "positions": {}}
        # `hello` first: by it a head that is new knows which files it must copy. All else comes
        # after the last parts of files, since a head that has heard `gone` reads no more.
        head.repeat(resume["seen"], 1)
        for ranks in running:
            ranks.go_back(resume["positions"])
        head.repeat(max(1, resume["seen"]))
    return order


def same_job():
    """Other runs of this job here, which would write the same files; locks the job."""
    holder = take_job(MASTER_PATIENCE_S if ARGS["first_rank"] == 0 else PATIENCE_S)
    found = [holder] if holder else []  # of two that start at the same time
    for pid in all_pids():
        run, job, node, _ = tags(pid)
        # A rank whose agent is gone.
        if job == ARGS["job"] and run != ARGS["run"] and node == ARGS["node"] and is_own(pid):
            if agents_of(run) or not end_idle(pid):
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


def start_order(emit):
    """Answer the head until it sends start; None when it sends something else, or nothing."""
    while True:
        order = next_order(min(ARGS["lease_s"], UNSTARTED_S))
        if order is None or order["op"] not in ("connect", "ping", "probe", "start", "told"):
            return None
        if order["op"] == "told" and order["by"] is not None:
            return None
        if order["op"] == "start":
            return order
        if order["op"] == "probe":
            port, names = order["port"], order["addresses"]
            errors = {name: probe_port(name, port, ARGS["port_word"]) for name in names}
            emit({"type": "probed", "errors": errors})
