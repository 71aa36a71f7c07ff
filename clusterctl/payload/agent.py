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
import re
import signal
import subprocess
import time

from clusterctl.payload.files.ownership import refuse_planted
from clusterctl.payload.files.private import new_folder, own_folder
from clusterctl.payload.jobs.processes import (
    end_all,
    exit_code,
    exit_text,
    members,
    process,
    send,
    start_of,
)
from clusterctl.payload.launch.async_writer import AsyncWriter, Follower, tail
from clusterctl.payload.launch.job_lock import leave_job, same_job
from clusterctl.payload.launch.rendezvous import (
    RendezvousListener,
    interface_towards,
    own_addresses,
    probe_port,
)
from clusterctl.payload.prelude import ARGS, emit, emit_through, hold_lease, on_signals, read_bytes

libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_S = 0.1
LOG_S = 2.0  # until torchrun's log has the exit code of a rank whose end was not seen
BEAT_S = 1.0
LOG_BYTES_PER_S = 256 * 1024  # of a rank's log, to a head that does not share the run directory
LAST_BYTES = 1 << 20  # of telemetry at once, and of each rank's log when all is over

# A SimpleQueue: a signal handler puts into it, which may deadlock with queue.Queue.
orders = queue.SimpleQueue()  # type: Any


class Ranks:
    """The processes that the agent started."""

    def __init__(self):
        self.child = None  # type: Any  # Popen of torchrun
        self.beats = ""  # folder of the heartbeats
        self.pids = {}  # rank -> (pid, start ticks)
        self.ended = {}  # rank -> exit code or None
        self.vanished = {}  # rank -> when it was found gone, its exit code unknown so far
        self.code = None  # of torchrun


def main():
    writer = AsyncWriter(end)
    emit_through(writer.send)
    try:
        supervise(writer)
    finally:
        leave_job()
        writer.flush()


def end(*_):
    """The head has gone, or a signal asks this agent to end."""
    orders.put({"op": "end"})


def supervise(writer):
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    on_signals(end)
    hold_lease(orders.put, end)
    # Files of ranks are for their user alone, or for the group that the user has named.
    os.umask(0o027 if ARGS["group"] else 0o077)
    refused = "no job can be started here"
    try:
        refuse_planted(ARGS["python"], ARGS["workdir"])
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
    if order is None:
        emit({"type": "gone", "left": []})
        return
    ranks = Ranks()
    try:
        start(ranks, order)
    except OSError as error:
        remove_folder(ranks.beats)
        emit({"type": "failed", "text": "cannot start %s: %s" % (order["argv"][0], error)})
        emit({"type": "gone", "left": []})
        return
    emit({"type": "started", "pid": ranks.child.pid})
    try:
        watch(ranks, shared, writer)
    except BaseException:
        end_members(ARGS["fail_grace_s"])  # the ranks must not outlive this program
        raise


def end_members(grace_s):
    """End all processes of the run on this node; returns what is left."""
    return end_all(lambda: members(ARGS["run"], ARGS["node"], os.getpid()), grace_s)


def next_order(timeout_s):
    """The head's next order, `{"op": "end"}` when it has gone; None after `timeout_s`."""
    try:
        return orders.get(timeout=timeout_s)
    except queue.Empty:
        return None


def is_shared():
    """Whether the head's run directory is visible here; makes one if not. Raises OSError."""
    run_dir = ARGS["run_dir"]
    os.makedirs(run_dir, 0o700, exist_ok=True)
    owners = [read_bytes(os.path.join(run_dir, name)) for name in (".run-id", ".run-id-here")]
    owners = [owner and owner.decode("utf-8", "replace").strip() for owner in owners]
    is_heads = owners[0] == ARGS["run"]
    # Of a run whose files the head cannot see the logs would be mixed with this one's.
    strangers = [run for run in owners if run not in (None, ARGS["run"])]
    if strangers and not is_heads:
        raise OSError("%s is not the head's and holds run %s" % (run_dir, strangers[0]))
    if ARGS["group"] and not is_heads:
        open_to_group(run_dir, ARGS["group"])
    folders = [os.path.join(run_dir, name) for name in ("ranks", "stacks", "samples")]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    refuse_planted(*folders)
    if not is_heads:
        with open(os.path.join(run_dir, ".run-id-here"), "w") as file:
            file.write(ARGS["run"])
    return is_heads


def open_to_group(folder, name):
    """Let a group read the folder and what is made in there. Raises OSError."""
    import grp

    try:
        os.chown(folder, -1, grp.getgrnam(name).gr_gid)
    except KeyError:
        raise OSError("there is no group %s on this node" % name) from None
    os.chmod(folder, 0o2750)


def start_order():
    """Answer the head until it sends start; None when it sends something else, or nothing."""
    while True:
        order = next_order(ARGS["lease_s"])
        if order is None or order["op"] not in ("ping", "knock", "start"):
            return None
        if order["op"] == "start":
            return order
        if order["op"] == "knock":
            port, names = order["port"], order["addresses"]
            errors = {name: probe_port(name, port, ARGS["word"]) for name in names}
            emit({"type": "knocked", "errors": errors})


def start(ranks, order):
    ranks.beats = new_folder("beats", (own_folder(),))
    env = dict(os.environ, **order["env"])
    python_bin = os.path.dirname(ARGS["python"])
    env["PATH"] = python_bin + ":" + env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    if env.get("OMP_NUM_THREADS") == "auto":
        env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ARGS["slots"]))
    if env.get("GLOO_SOCKET_IFNAME") == "auto":
        name = interface_towards(order["address"])
        env.pop("GLOO_SOCKET_IFNAME")
        if name:
            env["GLOO_SOCKET_IFNAME"] = name
    env["CLUSTERCTL_HEARTBEATS"] = ranks.beats
    for name in ("run", "job", "node", "run_dir"):
        env["CLUSTERCTL_" + name.upper()] = ARGS[name]
    with open(starter_log(), "ab") as log:
        ranks.child = subprocess.Popen(
            order["argv"],
            env=env,
            cwd=ARGS["workdir"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # If the agent is killed, torchrun ends its ranks. Children of the subreaper stay;
            # `reap` finds them by their tag.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )


def starter_log():
    name = "torchrun-%s.log" % ARGS["node"].replace("/", "_")
    return os.path.join(ARGS["run_dir"], "ranks", name)


def rank_log(rank):
    return os.path.join(ARGS["run_dir"], "ranks", "%d.log" % rank)


def watch(ranks, shared, writer):
    """Until everything has ended, by itself or by order."""
    telemetry = Follower(os.path.join(ARGS["run_dir"], "telemetry.jsonl"))
    logs = {} if shared else {rank: Follower(rank_log(rank)) for rank in own_ranks()}
    beat = [time.monotonic()]

    def turn():
        """Check everything and report to the head; returns its order, if there is one."""
        order = next_order(LOOK_S)
        look(ranks)
        if not writer.is_behind():
            send_files(telemetry, logs)
            if time.monotonic() - beat[0] >= BEAT_S:
                beat[0] = time.monotonic()
                emit({"type": "beat", "ranks": heartbeats(ranks.beats)})
        return order

    heard_s = time.monotonic()
    while ranks.code is None:
        order = turn()
        op = order["op"] if order is not None else None
        if op is not None:
            heard_s = time.monotonic()
        if op == "stop":
            stop(ranks, order["grace_s"], turn)
        elif op == "end" or time.monotonic() - heard_s > ARGS["lease_s"]:
            stop(ranks, ARGS["fail_grace_s"], turn)
    left = end_members(0.5)
    for rank in list(ranks.vanished):
        report_ended(ranks, rank, code_in_log(ranks.pids[rank][0]))
    send_files(telemetry, logs, to_the_end=True)
    remove_folder(ranks.beats)
    emit({"type": "ended", "code": ranks.code, "tail": tail(starter_log())})
    emit({"type": "gone", "left": left})


def own_ranks():
    return range(ARGS["first_rank"], ARGS["first_rank"] + ARGS["slots"])


def look(ranks):
    """Find ranks that have started or ended, and report each once."""
    for rank in own_ranks():
        pid = None if rank in ranks.pids else first_pid(ranks.beats, rank)
        if pid is not None:
            ranks.pids[rank] = (pid, start_of(pid))
            emit({"type": "rank", "rank": rank, "pid": pid})
    for rank, (pid, start) in ranks.pids.items():
        if rank in ranks.ended:
            continue
        facts = process(pid)
        if facts is not None and facts.start == start:
            if facts.state in "ZX":
                report_ended(ranks, rank, exit_code(facts.exit_code))
            continue
        # torchrun has reaped it; its log will have the exit code.
        gone_s = time.monotonic() - ranks.vanished.setdefault(rank, time.monotonic())
        code = code_in_log(pid)
        if code is not None or gone_s > LOG_S:
            report_ended(ranks, rank, code)
    reap_children(ranks)


def first_pid(beats, rank):
    """The process id that the rank's shell wrote before it became the rank's program."""
    text = read_bytes("%s/%d.pid" % (beats, rank)) or b""
    return int(text) if text.endswith(b"\n") else None


def code_in_log(pid):
    """Exit code of a process in torchrun's report, which has only the first; else None."""
    pattern = r"exitcode: (-?\d+)\) local_rank: \d+ \(pid: %d\)" % pid
    found = re.search(pattern, "\n".join(tail(starter_log())))
    return int(found.group(1)) if found else None


def report_ended(ranks, rank, code):
    ranks.ended[rank] = code
    ranks.vanished.pop(rank, None)
    message = {"type": "rank_ended", "rank": rank, "code": code, "how": exit_text(code)}
    if code != 0:
        message["tail"] = tail(rank_log(rank))
    emit(message)


def reap_children(ranks):
    """Reap torchrun, and orphans that are ours as a subreaper."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == ranks.child.pid:
            ranks.code = exit_code(status)
            ranks.child.returncode = ranks.code  # Popen must not wait for it again


def stop(ranks, grace_s, turn):
    """Send SIGTERM to the ranks alone, so that they can save, then end everything."""
    if grace_s > 0:
        keys = [key for rank, key in ranks.pids.items() if rank not in ranks.ended]
        send([pid for pid, start in keys if start_of(pid) == start], signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and len(ranks.ended) < len(ranks.pids):
            order = turn()
            if order is not None and order["op"] == "stop" and order["grace_s"] == 0:
                break  # the user asked twice
    end_members(min(grace_s, 1.0))
    deadline = time.monotonic() + 2.0
    while ranks.code is None and time.monotonic() < deadline:
        look(ranks)
        time.sleep(0.05)
    if ranks.code is None:
        ranks.code = -signal.SIGKILL  # it cannot be ended; `gone` reports what is left


def send_files(telemetry, logs, to_the_end=False):
    log_bytes = LAST_BYTES if to_the_end else int(LOG_BYTES_PER_S * LOOK_S)
    if ARGS["first_rank"] == 0:
        text = telemetry.lines(LAST_BYTES, to_the_end)
        if text:
            emit({"type": "telemetry", "text": text})
    for rank, log in logs.items():
        text = log.lines(log_bytes, to_the_end)
        if text:
            emit({"type": "log", "rank": rank, "text": text})


def heartbeats(beats):
    """Step, phase and age of each rank's last beat; a rank without one is left out."""
    found = {}
    for rank in own_ranks():
        try:
            beat = json.loads(read_bytes("%s/%d.json" % (beats, rank)) or b"")
            age_s = round(time.monotonic() - beat["mono_s"], 2)
            found[str(rank)] = {"step": beat["step"], "phase": beat["phase"], "age_s": age_s}
        except (ValueError, KeyError, TypeError):
            continue
    return found


def remove_folder(path):
    import shutil

    shutil.rmtree(path, ignore_errors=True)
