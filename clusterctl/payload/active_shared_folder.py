"""Whether a folder is the same on all nodes, and how fast it is read; each step may hang."""

import json
import sys

from clusterctl.payload.tools import section

FILES_CODE = """
import hashlib, json, os, shutil, sys, time

asked = json.loads(sys.argv[1])
folder = asked["folder"]
token, data = os.path.join(folder, "token"), os.path.join(folder, "data")


def write():
    os.mkdir(folder, 0o755)
    block = hashlib.sha256(asked["word"].encode()).digest() * 32768
    started = time.monotonic()
    with open(data, "wb") as file:
        for _ in range(asked["blocks"]):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.monotonic() - started
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # Last, and by a rename: a node that sees it may read all.
    with open(token + ".part", "w") as file:
        file.write(asked["word"])
        file.flush()
        os.fsync(file.fileno())
    os.rename(token + ".part", token)
    return {"seconds": seconds}


def watch():
    started = time.monotonic()
    while True:
        try:
            os.listdir(os.path.dirname(folder))  # makes NFS look again, not answer from memory
            with open(token) as file:
                word = file.read()
            break
        except OSError as error:
            if time.monotonic() - started > asked["patience_s"]:
                parent = os.path.dirname(folder)
                why = error.strerror if os.path.isdir(parent) else "no folder " + parent
                return {"error": "not seen within %g s: %s" % (asked["patience_s"], why)}
            time.sleep(0.05)
    if word != asked["word"]:
        return {"error": "another token is there"}
    return {"seen_s": time.monotonic() - started}


def read():
    total, count = hashlib.sha256(), 0
    started = time.monotonic()
    with open(data, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for piece in iter(lambda: file.read(4 << 20), b""):
            total.update(piece)
            count += len(piece)
    seconds = time.monotonic() - started
    block = hashlib.sha256(asked["word"].encode()).digest() * 32768
    wanted = hashlib.sha256()
    for _ in range(asked["blocks"]):
        wanted.update(block)
    if total.digest() != wanted.digest():
        return {"error": "what is read is not what was written (%d bytes)" % count}
    return {"bytes": count, "seconds": seconds}


def remove():
    shutil.rmtree(folder, ignore_errors=True)
    return {"error": "cannot be removed"} if os.path.exists(folder) else {}


try:
    answer = {"write": write, "watch": watch, "read": read, "remove": remove}[asked["do"]]()
except OSError as error:
    answer = {"error": "%s: %s" % (error.filename or folder, error.strerror)}
print(json.dumps(answer))
"""


def run_files(id, asked, timeout_s):
    """The answer of the step; with `error` and `hung` where it gave no answer in time."""
    argv = [sys.executable, "-I", "-S", "-c", FILES_CODE, json.dumps(asked)]
    done = section("files:%s" % id, argv, timeout_s)
    if done["state"] == "timeout":
        return {"error": "no answer in %g s" % timeout_s, "hung": True}
    try:
        return json.loads(done["out"].splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": (done["err"].strip().splitlines() or ["no answer"])[-1][:300]}
