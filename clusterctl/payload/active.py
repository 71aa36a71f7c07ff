"""Tests that load a node, one JSON order a line, until stdin closes.

Orders have an `id`, an `op` and a `timeout_s`; each answer has the id and, after a failure,
`error`. Started processes and written files are removed when the lease or the process ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time

from clusterctl.payload.active_files import run_files
from clusterctl.payload.collect.ports import try_port
from clusterctl.payload.files.ownership import NotPrivate, planted
from clusterctl.payload.launch.rendezvous import (
    RendezvousListener,
    interface_towards,
    own_addresses,
    probe_port,
)
from clusterctl.payload.prelude import (
    _live,
    _live_lock,
    _out_lock,
    hold_lease,
    kill_tools,
    read_text,
    together,
    tool_env,
)

SILENT_S = 6.0  # a rank says twice a second that it lives, unless it is starved
BOOT = "import sys;i=sys.stdin.buffer;exec(compile(i.read(int(i.readline())),'active_rank','exec'))"

ranks = []  # type: list  # of Rank
doors = []  # type: list
folders = []  # type: list  # of ours in a shared folder
leaving = threading.Lock()
starts = queue.SimpleQueue()  # type: Any  # orders to start ranks


class Rank:
    """A process of active_rank.py: its newest sign of life, and what it has still to answer."""

    def __init__(self, python, text, device, env):
        self.device = device
        self.ready = {}  # type: dict
        self.is_ready = threading.Event()
        self.beat_s = time.monotonic()
        self.phase = "start"
        self.answers = {}  # type: dict  # id -> (event, box)
        self.child = subprocess.Popen(
            [python, "-B", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(tool_env(), **env),
            cwd="/",
        )
        with _live_lock:
            _live[self.child.pid] = self.child  # so that the end of the lease ends it too
        self.said = b""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._hear, daemon=True).start()
        body = text.encode()
        self.write(b"%d\n" % len(body) + body + json.dumps({"device": device}).encode() + b"\n")

    def write(self, data):
        try:
            self.child.stdin.write(data)  # type: ignore[union-attr]
            self.child.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            pass  # it has ended: whoever waits for its answer sees that

    def _hear(self):
        for line in self.child.stderr:  # type: ignore[union-attr]
            self.said = (self.said + line)[-2000:]

    def _read(self):
        for line in self.child.stdout:  # type: ignore[union-attr]
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
                event, box = self.answers[message["id"]]
                box.append(message)
                event.set()
        self.child.wait()
        if not self.ready:
            words = self.said.decode("utf-8", "replace").strip().splitlines()
            self.ready = {"error": "ended: %s" % (words[-1][:300] if words else "no output")}
        self.is_ready.set()
        for event, _ in list(self.answers.values()):
            event.set()

    def ask(self, order, timeout_s):
        """Its answer; without one, `error` and whether the process itself is at fault."""
        event, box = threading.Event(), []  # type: threading.Event, list
        self.answers[order["id"]] = (event, box)
        self.write(json.dumps(order).encode() + b"\n")
        started = time.monotonic()
        event.wait(timeout_s)
        # One that ends when the time is up may have been ended by its library for others' sake.
        early = time.monotonic() - started < 0.8 * order.get("timeout_s", timeout_s)
        self.answers.pop(order["id"], None)
        if box:
            return box[0]
        if self.child.poll() is not None:
            words = self.said.decode("utf-8", "replace").strip().splitlines()
            why = "its process ended (%s): %s" % (
                self.child.returncode,
                words[-1][:200] if words else "no output",
            )
            return {"error": why, "own": early, "phase": self.phase}
        silent_s = time.monotonic() - self.beat_s
        state = state_of(self.child.pid)
        if state in "Tt" or (silent_s > SILENT_S and state != "R"):
            why = "its process gives no sign of life (state %s)" % state
            return {"error": why, "own": True, "phase": self.phase}
        return {"error": "no end in %g s: %s" % (timeout_s, self.phase), "phase": self.phase}

    def is_usable(self):
        return (
            self.child.poll() is None
            and self.is_ready.is_set()
            and "error" not in self.ready
            and self.phase == "idle"
            and time.monotonic() - self.beat_s <= SILENT_S
        )

    def kill(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except OSError:
            pass  # gone
        with _live_lock:
            _live.pop(self.child.pid, None)


def state_of(pid):
    """The letter of its state: T is stopped, D sleeps in the kernel."""
    try:
        return read_text("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return "?"


def main():
    woken, wake = os.pipe()
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        # No lock may be taken in a handler: a thread is woken instead.
        signal.signal(getattr(signal, name), lambda *_: os.write(wake, b"x"))
    threading.Thread(target=lambda: (os.read(woken, 1), leave()), daemon=True).start()
    # One thread starts all ranks and lives as long as this process: the kernel's death signal
    # follows the thread that forked, and a start from a dead mount must not block the lease.
    threading.Thread(target=start_forever, daemon=True).start()
    hold_lease(on_message=obey, on_close=leave)
    threading.Event().wait()


def obey(order):
    # Each in a thread of its own: a test that hangs keeps no other waiting.
    if order["op"] == "start":
        starts.put(order)
    else:
        threading.Thread(target=answer, args=(order,), daemon=True).start()


def start_forever():
    while True:
        begin_ranks(starts.get())


def answer(order):
    try:
        told = OPS[order["op"]](order)
    except Exception as error:  # noqa: BLE001 - order boundary: it becomes the answer
        told = {"error": "%s: %s" % (type(error).__name__, error)}
    tell(dict(told, id=order["id"]))


def tell(message):
    """As `emit`; but a head that has gone leaves us something to remove."""
    data = (json.dumps(message) + "\n").encode()
    try:
        with _out_lock:
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        leave()


def begin_ranks(order):
    """One for each device; those that still work stay."""
    wanted = order["devices"]
    for rank in list(ranks):
        if rank.device not in wanted or not rank.is_usable():
            rank.kill()
            ranks.remove(rank)
    env = dict(order.get("env") or {})
    # A collective that is not joined in time shall raise in its rank, not end the process.
    env.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    peer = order.get("peer")
    # "auto" is launch's word for: the interface towards the others.
    interface = interface_towards(peer) if peer else None
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if env.get(name, "auto" if name[0] == "G" else "") == "auto":
            env.pop(name, None)
            env.update({name: interface} if interface else {})
    try:
        why = planted(order["python"])
        if why:
            raise NotPrivate(why)
        for device in wanted:
            if device not in [rank.device for rank in ranks]:
                ranks.append(Rank(order["python"], order["text"], device, env))
    except OSError as error:
        tell(
            {
                "id": order["id"],
                "error": "%s cannot be started: %s" % (order["python"], error.strerror or error),
            }
        )
        return
    ranks.sort(key=lambda rank: wanted.index(rank.device))
    threading.Thread(target=await_ranks, args=(order,), daemon=True).start()


def await_ranks(order):
    deadline = time.monotonic() + order["timeout_s"]
    told = []
    for rank in list(ranks):
        stopped = 0
        while not rank.is_ready.wait(0.5) and time.monotonic() < deadline and stopped < 4:
            stopped = stopped + 1 if state_of(rank.child.pid) in "Tt" else 0
        late = {"error": "no start in %g s: %s" % (order["timeout_s"], rank.phase)}
        if stopped:
            late = {"error": "its process was stopped (state T) while it was to %s" % rank.phase}
        told.append(dict(rank.ready or late, device=rank.device))
    tell({"id": order["id"], "ranks": told})


def work(order):
    """One order for each rank, all at once; those that hang are killed."""
    jobs = order["orders"]
    if len(ranks) < len(jobs):
        return {"error": "no process is there to do it"}
    told = [None] * len(jobs)  # type: list

    def one(at):
        told[at] = ranks[at].ask(dict(jobs[at], id=order["id"]), order["timeout_s"])

    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, one_told in enumerate(told):
        if one_told.get("error") and not one_told.get("seconds"):
            ranks[at].kill()
    return {"answers": told}


def open_door(order):
    """Listen where ranks will meet, and say the word to whoever knocks."""
    door = RendezvousListener(order["ports"], order["word"])
    holder = ""
    if door.port is None:
        holder = try_port(order["ports"][0])
    else:
        doors.append(door)
    return {"port": door.port, "holder": holder, "addresses": own_addresses()}


def try_doors(order):
    """`where` is a list of (address, port); why each cannot be reached, or null."""
    told = [None] * len(order["where"])  # type: list

    def one(at):
        address, port = order["where"][at]
        told[at] = probe_port(address, port, order["word"])

    together([lambda at=at: one(at) for at in range(len(told))])
    return {"why": told}


def close_doors(_order):
    while doors:
        doors.pop().close()
    return {}


def files(order):
    """A step of the shared folder's test, in a process that can be abandoned to a dead mount."""
    asked = order["ask"]
    if asked["do"] == "write":
        folders.append(asked["folder"])
    told = run_files(order["id"], asked, order["timeout_s"])
    if asked["do"] == "remove" and asked["folder"] in folders and "error" not in told:
        folders.remove(asked["folder"])
    return told


OPS = {
    "work": work,
    "door": open_door,
    "knock": try_doors,
    "close_doors": close_doors,
    "files": files,
}


def leave():
    """End and remove all that is ours, then this process."""
    if not leaving.acquire(False):
        threading.Event().wait()  # another thread is at it
    try:
        for rank in list(ranks):
            rank.kill()
        for folder in list(folders):
            run_files("leave", {"do": "remove", "folder": folder}, 5.0)
        kill_tools()
    finally:
        os._exit(0)
