"""Examine video files on this node: `clusterctl data`.

Starts `python -m trainer.data examine` of the training environment and passes lines on: requests
as `{"op": "ask", "questions": […]}`, answers as `{"answers": […]}`. A heartbeat is sent every
BEAT_S. When stdin closes, all processes end.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading

from clusterctl.payload.files.ownership import planted
from clusterctl.payload.prelude import ARGS, emit, hold_lease

BEAT_S = 2.0
STDERR_BYTES = 4000

stderr = []  # type: list  # last lines of the environment's python


def main():
    python, home = ARGS["python"], ARGS["home"]
    if not os.access(python, os.X_OK):
        fail("there is no %s here" % python)
    for path in (python, home):
        why = planted(path)
        if why:
            fail(why)
    env = dict(os.environ, OMP_NUM_THREADS="1")
    if os.path.isdir(os.path.join(home, "trainer")):  # a checkout on a shared folder
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [home, env.get("PYTHONPATH")]))
    child = subprocess.Popen(  # type: Any
        [python, "-m", "trainer.data", "examine"]
        + ["--workers", str(ARGS["workers"]), "--clip-timeout-s", str(ARGS["clip_timeout_s"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env=env,
    )
    asked = queue.SimpleQueue()  # type: queue.SimpleQueue
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: end(child))
    hold_lease(lambda order: asked.put(order["questions"]), lambda: end(child))
    for work in (lambda: carry(child, asked), lambda: hear(child), beat):
        threading.Thread(target=work, daemon=True).start()
    for line in child.stdout:
        message = json.loads(line)
        if "id" in message:
            emit({"answers": [message]})
        elif "ready" in message:
            emit({"ready": True, "workers": message["workers"]})
        else:
            emit({"failed": message.get("failed", "unexpected message")})
    code = child.wait()
    fail("%s -m trainer.data examine ended with code %d" % (python, code))


def carry(child, asked):
    """From here to the environment's python; its own thread, since that may be slow to read."""
    while True:
        lines = [json.dumps(question) + "\n" for question in asked.get()]
        try:
            child.stdin.write("".join(lines).encode())
            child.stdin.flush()
        except OSError:
            return  # it has ended, which main reports


def hear(child):
    for line in child.stderr:
        stderr.append(line.decode("utf-8", "backslashreplace"))
        del stderr[:-40]


def beat():
    import time

    while True:
        time.sleep(BEAT_S)
        emit({"alive": True})


def fail(text):
    said = "".join(stderr).strip()[-STDERR_BYTES:]
    last = said.splitlines()[-1] if said else ""
    emit({"failed": "%s: %s" % (text, last) if last else text, "said": said})
    os._exit(1)


def end(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass  # it has ended
    os._exit(0)
