"""Check where pushed data go and their size, then put them in place at once: `clusterctl push`.

The data themselves come by sftp into a file beside the destination. Nothing at the destination
changes before all of them are there and their checksum fits; then one rename changes it.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import tarfile

from clusterctl.payload.files.locks import try_lock
from clusterctl.payload.files.ownership import refuse_made_by_others
from clusterctl.payload.prelude import ARGS, finish

# Parts of a push that was killed are removed by the next one: by a lock it is known whether one is
# unpacked, and the head gives up a transfer that stalls for 20 s. What cannot be locked: later.
ABANDONED_S, STALE_S = 120, 86400
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def main():
    try:
        answer = {"prepare": prepare, "install": install, "drop": drop}[ARGS["step"]]()
    except (OSError, tarfile.TarError) as error:
        answer = {"error": str(error)}
    finish(answer)


def prepare():
    """Where the data are to go, whether they already exist, and whether they fit."""
    named = os.path.join(os.path.expanduser("~"), os.path.expanduser(ARGS["dest"]))
    refuse_made_by_others(named)
    dest = os.path.realpath(named)
    parent, name = os.path.split(dest)
    folder = ARGS["folder"]
    if not name:
        return {"error": "%s cannot be replaced" % dest}
    if os.path.lexists(dest) and os.path.isdir(dest) != folder:
        return {"error": "%s is a %s on the node" % (dest, "file" if folder else "folder")}
    os.makedirs(parent, exist_ok=True)
    prefix = ".%s.clusterctl-" % name
    clean(parent, prefix)
    part = os.path.join(parent, prefix + ARGS["token"])
    there = os.path.lexists(dest)
    if there and not folder and is_same(dest):
        os.chmod(dest, ARGS["mode"])
        return {"part": part, "dest": dest, "there": True, "same": True}
    free = shutil.disk_usage(parent).free
    needed = ARGS["size"] * (2 if folder else 1)  # a folder is beside its archive for a moment
    if needed > free:
        return {"error": "%s has %d bytes free, %d are needed" % (parent, free, needed)}
    # Private from the start: what is pushed may be a secret, and sftp would open it to all.
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return {"part": part, "dest": dest, "there": there, "same": False}


def clean(parent, prefix):
    """Remove what a push left that was killed, and nothing of one that goes on."""
    names = [name for name in os.listdir(parent) if name.startswith(prefix)]
    if not names:
        return
    mark = os.path.join(parent, prefix + ARGS["token"])
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        now_s = os.lstat(mark).st_mtime  # by the clock of the file system, which gave the others
        os.unlink(mark)
    except OSError:
        return  # a folder in which this user can remove nothing either
    for name in sorted(names, key=len, reverse=True):  # a part tells of the folders made of it
        path = os.path.join(parent, name)
        part = os.path.join(parent, prefix + name[len(prefix) :].split(".")[0])
        try:
            found = os.lstat(path)
            age_s = now_s - found.st_mtime
            # What others give such a name is not touched.
            if found.st_uid != os.getuid() or age_s <= ABANDONED_S:
                continue
            if age_s > STALE_S or is_idle(part):
                remove(path)
        except FileNotFoundError:
            continue  # its push has just ended


def is_idle(part):
    """Whether no push unpacks this part, which is in a lock's words; False where there is none."""
    try:
        lock = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return try_lock(lock)
    except OSError:
        return False
    finally:
        os.close(lock)


def is_same(dest):
    """Whether the data already exist; another user could still change a file of theirs."""
    found = os.lstat(dest)
    is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return is_own and found.st_size == ARGS["size"] and digest(dest) == ARGS["sha256"]


def drop():
    remove(ARGS["part"])
    return {"error": None}


def install():
    part, dest = ARGS["part"], ARGS["dest"]
    fresh = "%s.%s" % (part, os.urandom(8).hex())  # others can see `part` and take names like it
    lock = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try_lock(lock)
        if digest(part) != ARGS["sha256"]:
            return {"error": "what arrived is not what was sent (checksum)"}
        if not ARGS["folder"]:
            os.chmod(part, ARGS["mode"])
            os.replace(part, dest)
            return {"error": None}
        os.mkdir(fresh, 0o700)
        with tarfile.open(part) as archive:
            if hasattr(tarfile, "tar_filter"):  # Python 3.12 warns without
                archive.extraction_filter = tarfile.tar_filter
            archive.extractall(fresh)
        if os.path.lexists(dest):
            exchange(fresh, dest)
        else:
            os.rename(fresh, dest)
        return {"error": None}
    finally:
        remove(fresh)  # the old folder, by now
        remove(part)
        os.close(lock)


def exchange(fresh, dest):
    """Swap two folders at once; where the file system cannot, with a moment without either."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    old, new = os.fsencode(fresh), os.fsencode(dest)
    if rename and rename(AT_FDCWD, old, AT_FDCWD, new, RENAME_EXCHANGE) == 0:
        return
    aside = fresh + ".old"
    os.rename(dest, aside)
    try:
        os.rename(fresh, dest)
    except OSError:
        os.rename(aside, dest)
        raise
    os.rename(aside, fresh)


def digest(path):  # type: (Any) -> str
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            total.update(block)
    return total.hexdigest()


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
