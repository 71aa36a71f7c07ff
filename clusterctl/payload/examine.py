"""Examine video files on this node: `clusterctl data`.

Starts `python -m trainer.data examine` of the training environment and passes lines on: requests
as `{"op": "ask", "questions": […]}`, answers as `{"answers": […]}`. A heartbeat is sent every
BEAT_S. When stdin closes, all processes end.
"""

import json
import queue

from clusterctl.payload.launch import trainer_program
from clusterctl.payload.prelude import ARGS, emit, hold_lease, leave, on_signals
from clusterctl.payload.tools import in_thread

STDERR_BYTES = 4000


def main():
    python, home = ARGS["python"], ARGS["home"]
    refusal = trainer_program.why_not(python, home)
    if refusal is not None:
        give_up(refusal)
    words = ["trainer.data", "examine", "--workers", str(ARGS["workers"])]
    words += ["--clip-timeout-s", str(ARGS["clip_timeout_s"])]
    child = trainer_program.start_program(python, home, *words, OMP_NUM_THREADS="1")  # type: Any
    said = []  # type: list[str]
    requests = queue.SimpleQueue()  # type: queue.SimpleQueue
    on_signals(leave)
    hold_lease(lambda order: requests.put(order["questions"]), leave)
    in_thread(pass_on, child, requests)
    in_thread(trainer_program.read_stderr, child, said)
    in_thread(trainer_program.beat, {"alive": True})
    for line in child.stdout:
        message = json.loads(line)
        if "id" in message:
            emit({"answers": [message]})
        elif "ready" in message:
            emit({"ready": True, "workers": message["workers"]})
        else:
            emit({"failed": message.get("failed", "unexpected message")})
    give_up("%s -m trainer.data examine ended with code %d" % (python, child.wait()), said)


def pass_on(child, requests):
    """Requests to the environment's python; in a thread, since that may be slow to read."""
    while trainer_program.tell(child, *requests.get()):
        pass
    # It has ended, which main reports.


def give_up(text, said=()):
    errors = "".join(said).strip()[-STDERR_BYTES:]
    last = errors.splitlines()[-1] if errors else ""
    trainer_program.fail({"failed": "%s: %s" % (text, last) if last else text, "said": errors})
