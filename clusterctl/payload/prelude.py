"""The base of every payload: `python3 -I -S`, 3.8 or newer, with the standard library alone."""

import json
import os
import signal
import sys
import threading

from clusterctl.payload.proc_files import node_facts
from clusterctl.payload.tools import SECTIONS, in_thread, kill_tools

# Imports are most of a payload's cost: 48 ms of CPU with traceback, socket, subprocess and
# importlib.abc, 30 without. What is needed only sometimes is imported where it is needed.

MARKER = "==clusterctl-payload-1=="  # the first line of every payload, after any shell output
VERB = ""
ARGS = {}  # type: dict

_out_lock = threading.Lock()


def emit(message, on_loss=None):
    """Send one JSON line to the head; `on_loss()`, else `leave()`, when it has gone."""
    write(json.dumps(message, separators=(",", ":")) + "\n", on_loss)


def write(text, on_loss=None):
    data = text.encode()
    with _out_lock:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            (on_loss or leave)()


def leave(*_, code=0, grace_s=0.0):
    """End all tools and this process; also a signal handler."""
    kill_tools(grace_s)
    os._exit(code)


def finish(data):
    """Send the answer of a one-shot payload: its node and sections, with `data` on top."""
    emit(dict(schema=1, verb=VERB, node=node_facts(), sections=dict(SECTIONS), **data))


def hold_lease(on_message=lambda message: None, on_close=lambda: leave(grace_s=1.0)):
    """Each JSON line of stdin goes to `on_message`; at its end `on_close()`, else all ends."""

    def watch():
        for line in sys.stdin.buffer:
            if not line.endswith(b"\n"):
                break
            try:
                if line.strip():
                    on_message(json.loads(line))
            except Exception:  # noqa: BLE001 - one broken message must not end the lease
                sys.excepthook(*sys.exc_info())
        on_close()

    in_thread(watch)


def on_signals(handler):
    """Call `handler(number, frame)` when something asks this payload to end."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, handler)


def run(module):
    """Read the arguments, print the marker, run the module's `main`."""
    global VERB
    given = json.loads(sys.stdin.buffer.readline())
    VERB = given["verb"]
    ARGS.update(given["args"])
    on_signals(lambda number, _: leave(code=128 + number))
    write("\n" + MARKER + "\n")
    try:
        __import__(module)
        sys.modules[module].main()
    except BaseException:  # noqa: BLE001 - the head shows stderr
        sys.excepthook(*sys.exc_info())
        leave(code=1)
    # sys.exit would wait for threads that hang in a dead mount, and older interpreters abort at
    # exit while a thread reads stdin.
    os._exit(0)
