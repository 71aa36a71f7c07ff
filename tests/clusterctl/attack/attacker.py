"""An ordinary user of the machine who races everything: names, sockets, ports, files. Run with -I -S.

Takes JSON on stdin: {"places", "spare", "guesses", "victim", "words", "pids"}. Until the next line
comes it takes every name that it can guess or derive from what it sees, with links, pipes, locked
files and folders full of traps; connects to every socket of that name and to every port of the range
that ranks meet at; reads every file that it can. Then it says what it did and what it found.
"""
# ruff: noqa: PTH102, PTH108, PTH112, PTH114, PTH118, PTH123, PTH208, PTH211

import fcntl
import json
import os
import re
import select
import shutil
import socket
import sys

TRAPS = ("0.pid", "1.pid", "0.json", "1.json", "0.log", "key", ".run-id", "py-spy")
READ = 1 << 16
MOST = 300  # names at a time
asked = json.loads(sys.stdin.readline())
counts = dict.fromkeys(("names", "locks", "sockets", "ports", "reads", "looks"), 0)
found = set()  # words that nobody should know, and where they stood
mine, locks, bound = [], [], {}
runs = set()


def look_for_words(where, data):
    for word in asked["words"]:
        if word.encode() in data:
            found.add(f"{word} in {where}")


def read(path):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        data = os.read(descriptor, READ)
    except OSError:
        data = b""
    os.close(descriptor)
    counts["reads"] += 1
    look_for_words(path, data)
    return data


def take(path, kind):
    """Put something of ours at `path`, if it is free."""
    try:
        if kind == 0:
            os.symlink(asked["victim"], path)
        elif kind == 1:
            os.mkfifo(path, 0o666)
        elif kind == 2:
            os.mkdir(path, 0o777)
            for name in TRAPS:
                os.symlink(asked["victim"], os.path.join(path, name))
        elif kind == 3:
            os.mkdir(path, 0o777)
            for number, pid in enumerate(asked["pids"]):
                with open(f"{path}/{number}.pid", "w") as file:
                    file.write(f"{pid}\n")
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, b"\x1b]0;owned\x07 %d" % asked["pids"][0])
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks.append(descriptor)
            counts["locks"] += 1
        mine.append(path)
        counts["names"] += 1
    except OSError:
        pass  # taken, or not to be written


def release():
    """Let all names go, so that they can be taken otherwise in the next round."""
    while locks:
        os.close(locks.pop())
    while mine:
        path = mine.pop()
        try:
            os.unlink(path)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)


def derived(name):
    """What a program may make beside a name that is seen."""
    return [name + end for end in (".new", ".part", ".lock", ".1", ".tmp", ".old", "~")]


def guesses():
    names = list(asked["guesses"])
    for run in runs:
        names += [f"clusterctl-0-{run}-{node}" for node in asked["nodes"]]
        names += [f"clusterctl-{run}", f"clusterctl-beats-{run}"]
    return names


def race_names(turn):
    for place in asked["places"]:
        try:
            seen = [name for name in os.listdir(place) if "clusterctl" in name]
            seen = [name for name in seen if os.path.join(place, name) not in mine]
        except OSError:
            seen = []
        names = guesses() + [other for name in seen for other in derived(name)]
        names = names[: max(0, MOST - len(mine))]
        for at, name in enumerate(names):
            take(os.path.join(place, name), (turn + at) % 5)
        for name in seen:
            walk(os.path.join(place, name))


def walk(top):
    if not os.path.isdir(top) or os.path.islink(top):
        read(top)
        return
    for folder, _, files in os.walk(top):
        for name in files:
            read(os.path.join(folder, name))


def collect_processes():
    counts["looks"] += 1
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            line = read(f"/proc/{pid}/cmdline")
            read(f"/proc/{pid}/environ")
            runs.update(re.findall(r"\d{8}-\d{6}-[0-9a-f]{6}", line.decode("utf-8", "replace")))


def race_sockets():
    for line in read("/proc/net/unix").decode("utf-8", "replace").splitlines():
        name = line.split()[-1]
        if "clusterctl" in name:
            with socket.socket(socket.AF_UNIX) as one:
                one.setblocking(False)
                try:
                    one.connect("\0" + name[1:] if name[0] == "@" else name)
                    counts["sockets"] += 1
                except OSError:
                    pass
    for name in guesses():
        if name not in bound:
            one = bound[name] = socket.socket(socket.AF_UNIX)
            try:
                one.bind("\0" + name)
                one.listen(1)
            except OSError:
                pass


def race_ports():
    """Whatever listens where ranks meet, or is a node's sshd: say nothing, hear what it says."""
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(table).decode().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                listening.add(int(words[1].rsplit(":", 1)[1], 16))
    for port in listening & (set(range(29500, 30000)) | set(asked["ports"])):
        try:
            with socket.create_connection(("127.0.0.1", port), 0.05) as one:
                counts["ports"] += 1
                look_for_words(f"port {port}", one.recv(200))
        except OSError:
            pass


print("ready", flush=True)
turn = 0
try:
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        race_names(turn)
        race_sockets()
        if turn % 10 == 0:
            collect_processes()
            race_ports()
            for place in asked["spare"]:
                walk(place)
        if turn % 20 == 19 or len(mine) >= MOST:
            release()
        turn += 1
        select.select([sys.stdin], [], [], 0.005)
finally:
    release()
print(json.dumps({"turns": turn, "counts": counts, "found": sorted(found), "runs": sorted(runs)}))
