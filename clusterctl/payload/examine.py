"""Examine video files on this node: `clusterctl data`.

Starts `python -m trainer.data examine` of the training environment and passes lines on: requests
as `{"op": "ask", "questions": […]}`, answers as `{"answers": […]}`. A heartbeat is sent every
BEAT_S. When stdin closes, all processes end.
"""

import json
import os
import queue
import time

from clusterctl.payload.launch.trainer_program import start_program, why_not
from clusterctl.payload.prelude import ARGS, emit, hold_lease, leave, on_signals
from clusterctl.payload.proc_files import as_text
from clusterctl.payload.tools import in_thread

BEAT_S = 2.0
STDERR_BYTES = 4000

stderr = []  # type: list  # last lines of the environment's python


def main():
    python, home = ARGS["python"], ARGS["home"]
    refusal = why_not(python, home)
    if refusal is not None:
        fail(refusal)
    words = ["trainer.data", "examine", "--workers", str(ARGS["workers"])]
    words += ["--clip-timeout-s", str(ARGS["clip_timeout_s"])]
    child = start_program(python, home, *words, OMP_NUM_THREADS="1")  # type: Any
    requests = queue.SimpleQueue()  # type: queue.SimpleQueue
    on_signals(leave)
    hold_lease(lambda order: requests.put(order["questions"]), leave)
    in_thread(pass_on, child, requests)
    in_thread(read_stderr, child)
    in_thread(beat)
    for line in child.stdout:
        message = json.loads(line)
        if "id" in message:
            emit({"answers": [message]})
        elif "ready" in message:
            emit({"ready": True, "workers": message["workers"]})
        else:
            emit({"failed": message.get("failed", "unexpected message")})
    fail("%s -m trainer.data examine ended with code %d" % (python, child.wait()))


def pass_on(child, requests):
    """Requests to the environment's python; in a thread, since that may be slow to read."""
    while True:
        lines = [json.dumps(question) + "\n" for question in requests.get()]
        try:
            child.stdin.write("".join(lines).encode())
            child.stdin.flush()
        except OSError:
            return  # it has ended, which main reports


def read_stderr(child):
    for line in child.stderr:
        stderr.append(as_text(line))
        del stderr[:-40]


def beat():
    while True:
        time.sleep(BEAT_S)
        emit({"alive": True})


def fail(text):
    errors = "".join(stderr).strip()[-STDERR_BYTES:]
    last = errors.splitlines()[-1] if errors else ""
    emit({"failed": "%s: %s" % (text, last) if last else text, "said": errors})
    os._exit(1)
