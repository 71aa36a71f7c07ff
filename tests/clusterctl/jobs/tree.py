"""Grow a tree of processes of all awkward kinds: `tree.py SEED COUNT`; says `pid start` of each, then `ready`.

Run with `python -I -S`: it stands for a trainer with workers, only quicker to start.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

KINDS = ("plain", "double", "session", "deaf", "stopped", "spawned", "group", "double-session")


def start_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def grow(rng, left, out):
    """Fork children of this process until `left` is used up, each with a share of the rest."""
    while left > 0:
        share = rng.randint(1, left)
        left -= share
        kind = rng.choice(KINDS)
        seed = rng.random()
        if os.fork() == 0:
            if kind.startswith("double") and os.fork() != 0:
                os._exit(0)
            if kind.endswith("session"):
                os.setsid()
            if kind == "group":
                os.setpgid(0, 0)
            if kind == "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            live(random.Random(seed), share - 1, out, kind)


def live(rng, left, out, kind):
    grow(rng, left, out)
    me = os.getpid()
    os.write(out, f"{me} {start_of(me)} {kind}\n".encode())
    if kind == "spawned":
        code = "from multiprocessing.spawn import spawn_main\nimport time; time.sleep(300)"
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code, "--multiprocessing-fork"])
    if kind == "stopped":
        os.kill(me, signal.SIGSTOP)
    while True:
        time.sleep(300)


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    read, write = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies: what is gone is gone
    grow(random.Random(seed), count - 1, write)
    lines = b""
    while lines.count(b"\n") < count - 1:
        lines += os.read(read, 65536)
    me = os.getpid()
    sys.stdout.write(lines.decode() + f"{me} {start_of(me)} root\nready\n")
    sys.stdout.flush()
    while True:
        time.sleep(300)


main()
