"""Census: the mounted file systems of a node and their free space."""

import json
import os
import re
import time
from functools import partial

from clusterctl.payload.collect.forked_child import collect_child, fork_child
from clusterctl.payload.proc_files import read_text

MOUNTS = 64  # that are measured; each takes a child
FUSE = ("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse")
NO_SPACE = ("squashfs", "iso9660", "fusectl", "autofs") + FUSE
NETWORK = tuple(
    "nfs fuse cifs smb ceph 9p lustre beegfs gpfs wekafs glusterfs virtiofs panfs pvfs2 orangefs"
    " afs cvfs".split()
)
LOCAL = ("zfs",)  # whose source is no device


def measure(path):
    found = os.statvfs(path)
    return {
        "path": path,
        "free": found.f_bavail * found.f_frsize,
        "total": found.f_blocks * found.f_frsize,
        "inodes_free": found.f_favail,
        "inodes": found.f_files,
    }


def measure_mounts(timeout_s):
    """One JSON line for each file system, from a child each: a dead server stops only that one."""
    deadline = time.monotonic() + timeout_s
    mounts, lines = list_mounts(), []
    children = [fork_child(partial(measure_mount, about)) for about in mounts[:MOUNTS]]
    for about, child in zip(mounts, children):
        answer = collect_child(about["path"], child, deadline - time.monotonic())
        late = "no answer in %g s" % timeout_s
        error = late if answer["state"] == "timeout" else answer["err"] or "died"
        lines.append(answer["out"] or json.dumps(dict(about, error=error)))
    for about in mounts[MOUNTS:]:
        lines.append(json.dumps(dict(about, error="one of more than %d, not measured" % MOUNTS)))
    return "\n".join(lines)


def measure_mount(about):
    path, writable = about["path"], not about["read_only"]
    try:
        about.update(measure(path), asked=path, writable=writable, is_folder=True)
    except OSError as error:
        about["error"] = error.strerror
    return json.dumps(about)


def list_mounts():
    """Network mounts, and local file systems once each by their shortest path."""
    chosen = {}  # type: dict
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 6 or len(kind) < 2 or kind[0] in NO_SPACE:
            continue
        path = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), words[4])
        is_device = kind[1].startswith("/dev/")
        network = kind[0].startswith(NETWORK) and not is_device  # fuseblk is a disk
        if not (network or is_device or kind[0] in LOCAL or path in ("/", "/tmp")):
            continue
        if path.startswith(("/boot", "/snap", "/proc", "/sys", "/dev/")):
            continue
        key = (words[2], kind[1] if network else "")
        if key not in chosen or len(path) < len(chosen[key]["path"]):
            read_only = "ro" in words[5].split(",")
            chosen[key] = {"path": path, "kind": kind[0], "source": kind[1], "read_only": read_only}
    return sorted(chosen.values(), key=lambda about: about["path"])


def measure_disk(asked):
    """statfs of the nearest folder of a path that exists already."""
    path = asked = os.path.abspath(asked)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    writable, is_folder = os.access(path, os.W_OK), os.path.isdir(path)
    return json.dumps(dict(measure(path), asked=asked, writable=writable, is_folder=is_folder))
