"""Stacks and kernel facts of a job's processes on this node, in several samples. Read-only.

ARGS: pick (jobs/find_job.py), samples, interval_s, limit_s (one dump), budget_s (everything),
width (0: by cores), py_spy (path or None), blocking, ras
(dump/counters.py); or op native with pids, py_spy as found before and given (the user's path).
Sends `found` and waits for {"op": "py-spy", "data"} or {"op": "go"} where it has no py-spy, then
sends `report`, packed.
"""

import base64
import json
import os
import queue
import re
import signal
import time
import zlib
from functools import partial

from clusterctl.payload.dump import proc_tasks, py_spy
from clusterctl.payload.dump.counters import Counters
from clusterctl.payload.dump.flight_recorder import flight_dump
from clusterctl.payload.dump.frames import Table, source_lines
from clusterctl.payload.jobs.find_job import describe_job, find_job, machine
from clusterctl.payload.jobs.heartbeats import clip, handles, heartbeat
from clusterctl.payload.jobs.processes import start_of
from clusterctl.payload.prelude import ARGS, emit, hold_lease, on_signals
from clusterctl.payload.proc_files import node_facts
from clusterctl.payload.tools import SECTIONS, at_once, call, kill_tools, together

SKIPPED = ("tracker", "shell")
FAULT_S = 1.5  # for a signalled trainer to write its stacks

answers = queue.Queue()  # type: Any


def main():
    # The end of stdin ends this payload with all its tools, after its folder is removed.
    hold_lease(answers.put, leave)
    on_signals(leave)
    try:
        report = native() if ARGS.get("op") == "native" else collect()
    finally:
        py_spy.remove_py_spy()  # before the head has the report and closes
    packed = base64.b64encode(zlib.compress(json.dumps(report).encode(), 6)).decode()
    emit({"type": "report", "packed": packed})


def leave(*_):
    kill_tools()
    py_spy.repair_all()
    py_spy.remove_py_spy()
    os._exit(0)


def native():
    # The py-spy of the first samples may have been the head's: removed, and its name free to take.
    path = ARGS["given"] or ARGS["py_spy"]
    if not path or not py_spy.is_program(path) or not (ARGS["given"] or py_spy.is_trusted(path)):
        path = receive_py_spy(len(ARGS["pids"]))
    return {"native": {str(pid): native_dump(path, pid) for pid in ARGS["pids"]}}


def native_dump(path, pid):
    """(threads or None, error, whether a stopped thread was resumed) of one process."""
    if path is None:
        return None, no_py_spy(), False
    threads, error, repaired = py_spy.dump(path, pid, ARGS["limit_s"], native=True)
    if threads is None:
        return None, error, repaired
    shown = []
    for thread in threads:
        name, tid = thread.get("thread_name") or "", thread.get("os_thread_id")
        frames = []
        for frame in thread["frames"][:2000]:
            where = frame.get("short_filename") or frame.get("module") or frame["filename"]
            frames.append({"name": frame["name"], "where": where, "line": frame.get("line") or 0})
        shown.append({"tid": tid, "name": name, "frames": frames})
    return shown, error, repaired


def collect():
    started = time.monotonic()
    shot, pids, strangers = find_job(ARGS["pick"])
    rows = describe_job(shot, pids)
    program = None
    if rows:
        # A job's environment may be on a mount that hangs.
        find = partial(py_spy.find_py_spy, rows, shot, ARGS.get("py_spy"))
        program = call("", lambda: find() or "", 3.0)["out"] or None
        if program is None:
            program = receive_py_spy(len(rows))
    table = Table()
    samples = []
    counters = Counters(rows, shot, ARGS.get("ras"), ARGS["interval_s"], ARGS["budget_s"])
    started_s = time.monotonic()
    for number in range(ARGS["samples"] if rows else 0):
        time.sleep(max(0.0, started_s + number * ARGS["interval_s"] - time.monotonic()))
        if number in (0, ARGS["samples"] - 1):
            counters.look()
        samples.append(sample(rows, shot, table, program, started))
    for between in samples[1:-1]:
        between["processes"] = {pid: thinned(pid, one) for pid, one in between["processes"].items()}
    report = {"rows": rows, "others": len(strangers), "machine": machine(), "node": node_facts()}
    report.update(py_spy=program, rights=py_spy.rights(), samples=samples)
    report.update(frames=table.frames, stacks=table.stacks, **surroundings(rows, shot, table))
    report["counters"] = counters.report()
    report["seconds"] = round(time.monotonic() - started, 3)
    return report


def thinned(pid, one):
    """What a sample between first and last needs: the stacks of the threads that do the work."""
    short = {name: one[name] for name in ("state", "text", "repaired") if name in one}
    names = {tid: row[4] for tid, row in one.get("tasks", {}).items()}

    def works(tid, name):
        is_main = tid == pid or name == "MainThread"
        return is_main or names.get(tid, "").startswith("pt_autograd")

    threads = [row for row in one.get("threads", ()) if works(str(row[0]), row[1])]
    return dict(short, threads=threads) if threads else short


def receive_py_spy(count):
    """The head's py-spy, until this payload ends; None when it has none for this machine."""
    emit({"type": "found", "processes": count, "machine": os.uname().machine})
    try:
        answer = answers.get(timeout=20.0)
    except queue.Empty:
        return None
    if answer.get("op") != "py-spy":
        return None
    try:
        return py_spy.unpack_py_spy(answer["data"])
    except OSError as error:
        py_spy.passed_over.append("the head's own: %s" % error)
        return None


def no_py_spy():
    return "; ".join(["no py-spy here"] + py_spy.passed_over[:2])


def sample(rows, shot, table, program, started):
    """One sample of every process: {pid: {facts, threads, how, error, repaired, at_s}}."""
    # Trainers first: a verdict needs them most if time runs out.
    order = {"trainer": 0, "loader": 1}
    rows = sorted(rows, key=lambda row: order.get(row["role"], 2))
    width = ARGS.get("width") or max(2, min(8, (os.cpu_count() or 2) // 2))
    at_s = time.monotonic()
    ones = at_once(lambda row: look_at(row, shot, table, program, started), rows, width)
    found = {str(row["pid"]): one for row, one in zip(rows, ones) if one}
    ask_by_signal(rows, found)
    seconds = round(time.monotonic() - at_s, 3)
    return {"at_s": round(at_s - started, 3), "seconds": seconds, "processes": found}


def look_at(row, shot, table, program, started):
    pid = row["pid"]
    if start_of(pid) != row["start"]:
        return {"state": None}  # ended meanwhile
    at_s = time.monotonic()
    one = proc_tasks.task_facts(pid, deep=row["role"] in ("trainer", "loader")) or {"state": None}
    one.update(at_s=round(at_s - started, 3), how="kernel", error="", repaired=False)
    one["beat"] = heartbeat(shot.seen[pid], pid, row["rank"]) if row["role"] == "trainer" else None
    one["clip"] = clip(shot.seen[pid], pid)
    if one["state"] in (None, "Z") or row["role"] in SKIPPED:
        return one
    if program is None:
        one["error"] = no_py_spy()
        return one
    left_s = ARGS["budget_s"] - (time.monotonic() - started)
    if left_s <= 0:
        one["error"] = "out of time"
        return one
    limit_s = min(ARGS["limit_s"], left_s)
    threads, error, repaired = py_spy.dump(program, pid, limit_s, ARGS.get("blocking", False))
    one.update(error=error, repaired=repaired, dump_s=round(time.monotonic() - at_s, 3))
    if threads is not None:
        one.update(how="py-spy", threads=table.add(threads))
    return one


def ask_by_signal(rows, found):
    """Without permission for py-spy: our trainer writes its stacks to its log at SIGUSR1.

    Only processes with our tag and a handler get it; it would end others or mean something else.
    One log at a time: a rank and its loaders share one.
    """
    for row in rows:
        one = found.get(str(row["pid"]), {})
        refused = one.get("how") == "kernel" and one.get("error")
        runs = one.get("state") not in (None, "T", "D", "Z")
        is_ours = row["run"] and row["role"] in ("trainer", "loader") and "python" in row["program"]
        if refused and runs and is_ours and handles(row["pid"], signal.SIGUSR1):
            text = faulthandler_text(row["pid"])
            one.update({"how": "faulthandler", "text": text} if text else {})


def faulthandler_text(pid):
    """What a process appends to its stderr after SIGUSR1; "" for nothing, or for no file."""
    try:
        path = os.readlink("/proc/%d/fd/2" % pid)
        size = os.stat(path).st_size
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return ""
    deadline, text = time.monotonic() + FAULT_S, ""
    while time.monotonic() < deadline:
        time.sleep(0.02)
        try:
            fresh = proc_tasks.read_file(path, 1 << 18, size).decode("utf-8", "replace")
        except OSError:
            return ""  # a pipe or a terminal
        if fresh and fresh == text and fresh.endswith("\n"):
            break  # it has stopped growing
        text = fresh
    begin = re.search(r"Thread 0x|Current thread 0x|Stack \(most", text)
    return text[begin.start() :] if begin else ""


def surroundings(rows, shot, table):
    """Logs, flight records, kernel log, open files and source lines, each within its deadline."""
    trainers = [row for row in rows if row["role"] == "trainer"]
    loaders = [row for row in rows if row["role"] == "loader"]

    def flight(row):
        return row["rank"], flight_dump(shot.seen[row["pid"]], row["rank"])

    parts = (  # name, deadline, pairs that are made within it
        ("logs", 3.0, lambda: ((row["pid"], proc_tasks.log_lines(row["pid"])) for row in trainers)),
        ("flight", 8.0, lambda: map(flight, trainers)),
        ("open", 3.0, lambda: ((row["pid"], proc_tasks.open_files(row["pid"])) for row in loaders)),
        ("source", 2.0, lambda: source_lines(table.leaves()).items()),
    )
    found = {part: {} for part, _, _ in parts}  # type: dict
    kernel = [[], None]  # type: list

    def fill(part, timeout_s, pairs):
        def work():
            for key, value in pairs():
                if value:
                    found[part][str(key)] = value
            return ""

        call(part, work, timeout_s)

    def read_kernel():
        kernel[:] = proc_tasks.kernel_lines(time.clock_gettime(time.CLOCK_BOOTTIME))

    together([partial(fill, *part) for part in parts] + [read_kernel] if rows else [])
    late = sorted(name for name, answer in SECTIONS.items() if answer["state"] == "timeout")
    # A late reader may still write into its part: the report gets a copy.
    copies = {part: dict(pairs) for part, pairs in found.items()}
    return dict(copies, kernel=kernel[0], kernel_cut_s=kernel[1], late=late)
