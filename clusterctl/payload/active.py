"""Tests that load a node, one JSON order a line, until stdin closes.

Orders have an `id`, an `op` and a `timeout_s`; each answer has the id and, after a failure,
`error`. Started processes and written files are removed when the lease or the process ends.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time

from clusterctl.payload import tools
from clusterctl.payload.active_shared_folder import run_files
from clusterctl.payload.collect.ports import try_port
from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.launch import rendezvous
from clusterctl.payload.prelude import emit, hold_lease, on_signals
from clusterctl.payload.proc_files import or_none, read_stat

SILENT_S = 6.0  # a rank sends two beats a second, unless it gets no CPU
BOOT = "import sys;i=sys.stdin.buffer;exec(compile(i.read(int(i.readline())),'active_rank','exec'))"

ranks = []  # type: list  # of Rank
listeners = []  # type: list
folders = []  # type: list  # that this payload has made in a shared folder
leaving = threading.Lock()
starts = queue.SimpleQueue()  # type: Any  # orders to start ranks


class Rank:
    """A process of torch_tests/rank.py: its last message, and the orders that it has to answer."""

    def __init__(self, python, text, device, env):
        self.device = device
        self.ready = {}  # type: dict
        self.is_ready = threading.Event()
        self.beat_s = time.monotonic()
        self.phase = "start"
        self.answers = {}  # type: dict  # id -> queue of its answer, or of None when it ends
        env = dict(tools.tool_env(), **env)
        argv = [python, "-B", "-c", BOOT]
        self.child = tools.start_tool(argv, env, stdin=subprocess.PIPE)  # type: Any
        self.stderr = b""
        tools.in_thread(self._read)
        tools.in_thread(self._read_stderr)
        body = text.encode()
        self.write(b"%d\n" % len(body) + body + json.dumps({"device": device}).encode() + b"\n")

    def write(self, data):
        try:
            self.child.stdin.write(data)
            self.child.stdin.flush()
        except OSError:
            pass  # it has ended: what waits for its answer sees that

    def _read_stderr(self):
        for line in self.child.stderr:
            self.stderr = (self.stderr + line)[-2000:]

    def last_line(self):
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "no output"

    def _read(self):
        for line in self.child.stdout:
            try:
                message = json.loads(line)
                kind = message.pop("type")
            except (ValueError, AttributeError, KeyError):
                continue  # a library that prints
            self.beat_s = time.monotonic()
            if kind == "beat":
                self.phase = message["phase"]
            elif kind == "ready":
                self.ready = message
                self.is_ready.set()
            elif message["id"] in self.answers:
                self.phase = "idle"  # its next beat may be half a second away
                self.answers[message["id"]].put(message)
        self.child.wait()
        if not self.ready:
            self.ready = {"error": "ended: %s" % self.last_line()}
        self.is_ready.set()
        for waiting in list(self.answers.values()):
            waiting.put(None)

    def ask(self, order, timeout_s):
        """Its answer; without one, `error` and whether the process itself is at fault."""
        waiting = queue.Queue()  # type: Any
        self.answers[order["id"]] = waiting
        self.write(json.dumps(order).encode() + b"\n")
        started = time.monotonic()
        try:
            answer = waiting.get(timeout=timeout_s)
        except queue.Empty:
            answer = None
        # One that ends when the time is up may have been ended by its library for others' sake.
        early = time.monotonic() - started < 0.8 * order.get("timeout_s", timeout_s)
        self.answers.pop(order["id"], None)
        if answer is not None:
            return answer
        if self.child.poll() is not None:
            why = "its process ended (%s): %s" % (self.child.returncode, self.last_line())
            return {"error": why, "own": early, "phase": self.phase}
        silent_s = time.monotonic() - self.beat_s
        state = state_of(self.child.pid)
        if state in "Tt" or (silent_s > SILENT_S and state != "R"):
            why = "its process gives no sign of life (state %s)" % state
            return {"error": why, "own": True, "phase": self.phase}
        return {"error": "no end in %g s: %s" % (timeout_s, self.phase), "phase": self.phase}

    def is_usable(self):
        has_started = self.is_ready.is_set() and "error" not in self.ready
        is_alive = self.child.poll() is None and time.monotonic() - self.beat_s <= SILENT_S
        return has_started and is_alive and self.phase == "idle"

    def kill(self):
        or_none(os.killpg, self.child.pid, signal.SIGKILL)
        tools.forget_tool(self.child)


def state_of(pid):
    """The letter of its state: T is stopped, D sleeps in the kernel."""
    found = read_stat(pid)
    return found[1][0] if found else "?"


def main():
    # No lock may be taken in a handler: a thread is woken instead.
    ends = queue.SimpleQueue()  # type: Any
    on_signals(lambda *_: ends.put(None))
    tools.in_thread(lambda: (ends.get(), leave()))
    # One thread starts all ranks and lives as long as this process: the kernel's death signal
    # follows the thread that forked, and a start from a dead mount must not block the lease.
    tools.in_thread(start_forever)
    hold_lease(on_message=take_order, on_close=leave)
    threading.Event().wait()


def start_forever():
    for order in iter(starts.get, None):
        start_ranks(order)


def take_order(order):
    # Each in its own thread: a test that hangs delays no other.
    if order["op"] == "start":
        starts.put(order)
    else:
        tools.in_thread(answer, order)


def answer(order):
    try:
        found = OPS[order["op"]](order)
    except Exception as error:  # noqa: BLE001 - order boundary: it becomes the answer
        found = {"error": tools.error_text(error)}
    emit(dict(found, id=order["id"]), leave)


def start_ranks(order):
    """One for each device; those that still work stay."""
    wanted = order["devices"]
    for rank in list(ranks):
        if rank.device not in wanted or not rank.is_usable():
            rank.kill()
            ranks.remove(rank)
    # A collective that is not joined in time shall raise in its rank, not end the process.
    env = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    env.update(order.get("env") or {})
    env.setdefault("GLOO_SOCKET_IFNAME", "auto")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        env.update(rendezvous.name_interface(env, name, order.get("peer")))
    try:
        refuse_made_by_others(order["python"])
        for device in wanted:
            if device not in [rank.device for rank in ranks]:
                ranks.append(Rank(order["python"], order["text"], device, env))
    except OSError as error:
        why = "%s cannot be started: %s" % (order["python"], error.strerror or error)
        emit({"id": order["id"], "error": why}, leave)
        return
    ranks.sort(key=lambda rank: wanted.index(rank.device))
    tools.in_thread(await_ranks, order)


def await_ranks(order):
    deadline = time.monotonic() + order["timeout_s"]
    answers = []
    for rank in list(ranks):
        stopped = 0
        while not rank.is_ready.wait(0.5) and time.monotonic() < deadline and stopped < 4:
            stopped = stopped + 1 if state_of(rank.child.pid) in "Tt" else 0
        late = {"error": "no start in %g s: %s" % (order["timeout_s"], rank.phase)}
        if stopped:
            late = {"error": "its process was stopped (state T) while it was to %s" % rank.phase}
        answers.append(dict(rank.ready or late, device=rank.device))
    emit({"id": order["id"], "ranks": answers}, leave)


def work(order):
    """One order for each rank, all at once; those that hang are killed."""
    jobs = order["orders"]
    if len(ranks) < len(jobs):
        return {"error": "no process is there to do it"}

    def ask(pair):
        return pair[0].ask(dict(pair[1], id=order["id"]), order["timeout_s"])

    answers = tools.at_once(ask, list(zip(ranks, jobs)))
    for rank, found in zip(ranks, answers):
        if found.get("error") and not found.get("seconds"):
            rank.kill()
    return {"answers": answers}


def listen(order):
    """Listen where ranks will meet; sends the word to each client."""
    listener = rendezvous.RendezvousListener(order["ports"], order["word"])
    listeners.append(listener)
    holder = "" if listener.port else try_port(order["ports"][0])
    return {"port": listener.port, "holder": holder, "addresses": rendezvous.own_addresses()}


def probe_ports(order):
    """`where` is a list of (address, port); why each cannot be reached, or null."""
    probe, word = rendezvous.probe_port, order["word"]
    return {"why": tools.at_once(lambda where: probe(where[0], where[1], word), order["where"])}


def stop_listening(_order):
    while listeners:
        listeners.pop().close()
    return {}


def files(order):
    """A step of the shared folder's test, in a process that can be abandoned to a dead mount."""
    asked = order["ask"]
    if asked["do"] == "write":
        folders.append(asked["folder"])
    answer = run_files(order["id"], asked, order["timeout_s"])
    if asked["do"] == "remove" and asked["folder"] in folders and "error" not in answer:
        folders.remove(asked["folder"])
    return answer


OPS = {"work": work, "files": files, "listen": listen, "close_ports": stop_listening}
OPS["probe"] = probe_ports


def leave():
    """End and remove all that is ours, then this process."""
    if not leaving.acquire(False):
        threading.Event().wait()  # another thread does it
    try:
        for rank in list(ranks):
            rank.kill()
        for folder in list(folders):
            run_files("leave", {"do": "remove", "folder": folder}, 5.0)
        tools.kill_tools()
    finally:
        os._exit(0)
