"""Keep warm samplers on this node, one for each GPU: `clusterctl serve`.

Starts `python -m trainer.infer.warm` of the training environment in each slot and passes lines on:
orders as `{"slot": 0, "order": {…}}`, answers as `{"slot": 0, "answer": {…}}`. The order `end`
kills one that hangs. A sampler that ends is started again, later each time; its end is `{"slot": 0,
"ended": why}`. A heartbeat is sent every BEAT_S. When stdin closes, all processes end.
"""

import json
import os
import time

from clusterctl.payload.launch import trainer_program
from clusterctl.payload.prelude import ARGS, emit, hold_lease, leave, on_signals
from clusterctl.payload.proc_files import or_none
from clusterctl.payload.tools import forget_tool, in_thread, section

FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S = 1.0, 60.0, 60.0
FREE_MIB = 1024  # of a GPU that nobody uses: a driver alone takes up to 600
QUERY = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
CACHE = ".cache/clusterctl-serve"  # of this user, for weights where no folder is shared
LINE_BYTES = 4 << 20

samplers = {}  # type: dict[int, Any]  # slot -> the process that runs now


def main():
    refusal = trainer_program.why_not(ARGS["python"], ARGS["home"])
    if refusal is not None:
        give_up(refusal)
    devices = slots()
    on_signals(leave)
    hold_lease(pass_on, leave)
    emit(
        {
            "type": "hello",
            "slots": len(devices),
            "shared": [is_shared(*pair) for pair in ARGS["tokens"]],
            "cache": os.path.join(os.path.expanduser("~"), CACHE),
        }
    )
    for slot, device in enumerate(devices):
        in_thread(keep, slot, device)
    trainer_program.beat({"type": "alive"})


def slots():
    """The GPU of each sampler as CUDA_VISIBLE_DEVICES names it; one None where there is none."""
    if ARGS["gpus"] is not None:
        return ARGS["gpus"]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    found = section("", QUERY, 10.0)
    if found["state"] == "missing":
        return [None]
    rows = [line.split(",") for line in found["out"].splitlines() if line.count(",") == 1]
    if found["state"] != "ended" or found["rc"]:
        said = (found["err"] or found["out"]).strip().splitlines()
        give_up("the GPUs cannot be read: %s" % (said[-1] if said else found["state"]))
    # A GPU whose memory is not known ("[N/A]", of a MIG device) is not known to be free.
    used = {index.strip(): int(mib) if mib.strip().isdecimal() else None for index, mib in rows}
    free = [index for index, mib in used.items() if mib is not None and mib < FREE_MIB]
    unknown = [index for index, mib in used.items() if mib is None]
    if unknown and not free:
        text = "how much memory of GPU %s is in use is not known; --gpus %s takes it all the same"
        give_up(text % (unknown[0], unknown[0]))
    if used and not free:
        all_of_them = "all %d GPUs are" % len(used) if len(used) > 1 else "the only GPU is"
        give_up("%s in use; --gpus 0 takes one all the same" % all_of_them)
    return free or [None]


def is_shared(path, token):
    """Whether this node sees a file that the head has just written."""
    try:
        with open(path, "rb") as file:
            return file.readline(100).strip() == token.encode()
    except OSError:
        return False


def keep(slot, device):
    pause_s = FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        why = run_sampler(slot, device)
        samplers.pop(slot, None)
        emit({"type": "ended", "slot": slot, "why": why})
        pause_s = FIRST_PAUSE_S if time.monotonic() - started > STEADY_S else pause_s
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def run_sampler(slot, device):
    """Until it ends: why."""
    given = {} if device is None else {"CUDA_VISIBLE_DEVICES": str(device)}
    program = ARGS["python"], ARGS["home"], "trainer.infer.warm"
    try:
        child = trainer_program.start_program(*program, **given)  # type: Any
    except (OSError, ValueError) as error:
        return "it cannot be started: %s" % error
    said = []  # type: list[str]
    reader = in_thread(trainer_program.read_stderr, child, said)
    samplers[slot] = child
    try:
        for line in child.stdout:
            if len(line) > LINE_BYTES:
                return "it sends a line of %d bytes" % len(line)
            emit({"type": "answer", "slot": slot, "answer": json.loads(line)})
    except ValueError:
        return "it sends what is no JSON"
    finally:
        or_none(child.kill)
        code = child.wait()
        forget_tool(child)
    reader.join(1.0)
    how = "was killed by signal %d" % -code if code < 0 else "ended with code %d" % code
    last = [line.strip() for line in said if line.strip()]
    return "the sampler %s%s" % (how, ": %s" % last[-1][:300] if last else "")


def pass_on(message):
    child = samplers.get(message["slot"])
    if child is None:
        return  # its end has been told, or will be
    if message["order"]["op"] == "end":
        child.kill()
        return
    trainer_program.tell(child, message["order"])  # of one that has ended `keep` tells


def give_up(text):
    trainer_program.fail({"type": "failed", "why": text})
