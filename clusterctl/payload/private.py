"""Folders, files and locks that no other user of a machine can make first, change or read.

Everybody can take a name in /tmp and /dev/shm before we do: as a folder, a link, a pipe, a file. So
what we make there has a random name and is made exclusively, and what must have a known name lies in
a folder of ours that is looked at before it is used. One text: part of payloads, imported by the head.
"""

from __future__ import annotations

import fcntl
import os
import stat
import zlib
from collections.abc import Container, Iterator

# On the machine, never on a shared folder: a stalled mount must not look like a stalled rank.
LOCAL = ("/dev/shm", "/tmp")
RUNTIME = ("/run", "/run/user/%d")  # root's, everybody else's: places that others cannot write
LOCAL_TYPES = ("ext", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs", "bcachefs", "ramfs", "squashfs", "devtmpfs")  # fmt: skip
LINKS = 40  # on the way to a file, as the kernel has it


class NotPrivate(OSError):
    """Another user of this machine has, or may have, a hand in what a path names."""


def new_folder(kind: str, parents: tuple[str, ...] = LOCAL) -> str:
    """Make a folder (0700) with a random name in the first of `parents` that takes it; its path.

    Raises `NotPrivate` with the reason of each when none does.
    """
    whys = []
    for parent in parents:
        path = os.path.join(parent, "clusterctl-%s-%s" % (kind, os.urandom(8).hex()))
        try:
            _check_parent(parent)
            os.mkdir(path, 0o700)
            return path
        except OSError as error:
            whys.append("%s: %s" % (parent, error.strerror or error))
    raise NotPrivate("no folder can be made (%s)" % "; ".join(whys))


def own_folder() -> str:
    """This user's folder on this machine (0700), for what programs of the same user must find.

    Made where it is missing. A name that another user has taken is left alone, and the next place
    serves. Raises `NotPrivate` with the reason of each place when none does.
    """
    uid = os.getuid()
    places = [(RUNTIME[0] if uid == 0 else RUNTIME[1] % uid, "clusterctl")]
    places += [(parent, "clusterctl-%d" % uid) for parent in LOCAL]
    whys = []
    for parent, name in places:
        path = os.path.join(parent, name)
        try:
            _check_parent(parent)
            _make_own(path)
            return path
        except OSError as error:
            whys.append("%s: %s" % (path, error.strerror or error))
    raise NotPrivate("no private folder can be had (%s)" % "; ".join(whys))


def _make_own(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate("is no folder")
    _check_owner(found)
    if found.st_mode & 0o077:
        raise NotPrivate("is open to other users (mode %04o)" % stat.S_IMODE(found.st_mode))


def _check_parent(parent: str) -> None:
    """Others may add names in there, but not take away ours."""
    why = foreign_hand(parent)
    if why:
        raise NotPrivate(why)


def _check_owner(found: os.stat_result, uid: int | None = None) -> None:
    if found.st_uid != (os.getuid() if uid is None else uid):
        raise NotPrivate("belongs to user %d" % found.st_uid)


def foreign_hand(path: str) -> str:
    """Why another user than root could have made or changed what lies at `path`; "" when none could.

    Every folder and link on the way counts. Raises OSError when there is no such path.
    """
    for at, found, _ in _way(path):
        why = changed_by_others(found)
        if why:
            return "%s %s" % (at, why)
    return ""


def changed_by_others(found: os.stat_result) -> str:
    """Why another user than root could change what has such a status; "" when none could.

    In a sticky folder such as /tmp others can add names, not take away ours.
    """
    if found.st_uid not in (0, os.getuid()):
        return "belongs to user %d" % found.st_uid
    if stat.S_ISLNK(found.st_mode) or _is_sticky(found):
        return ""
    group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    if group or found.st_mode & stat.S_IWOTH:
        return "can be changed by other users (mode %04o)" % stat.S_IMODE(found.st_mode)
    return ""


def planted(path: str) -> str:
    """Whose file or folder in a place that is open to all `path` leads through; "" for nobody's.

    Weaker than `foreign_hand`: folders of a project's group or of another owner are fine, but what
    anybody could have put there is not. Where a path ends early, what there is of it counts. Does not
    touch network drives: what lies there is the same everywhere, and a dead one would never answer.
    """
    try:
        for at, found, above in _way(path, _far_mounts()):
            if above.st_mode & stat.S_IWOTH and found.st_uid not in (0, os.getuid()):
                place = "lies in a folder that is open to all"
                return "%s belongs to user %d and %s" % (at, found.st_uid, place)
    except OSError:
        pass  # there is no more of it
    return ""


def _far_mounts() -> set[str]:
    """Where the drives are mounted that are none of this machine's."""
    found = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file.read().decode("utf-8", "surrogateescape").splitlines():
            where, _, how = line.partition(" - ")
            if not how.startswith(LOCAL_TYPES):
                found.add(where.split(" ")[4])
    return found


def _way(
    path: str, stop_at: Container[str] = ()
) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """(name, its lstat, its folder's) of everything on the way to a file, links and their targets too."""
    at, above, links = "/", os.lstat("/"), 0
    todo = os.path.join(os.getcwd(), path).split("/")
    while todo:
        name = todo.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            above = os.lstat(at)
            continue
        here = os.path.join(at, name)
        if here in stop_at:
            return
        found = os.lstat(here)
        yield here, found, above
        if not stat.S_ISLNK(found.st_mode):
            at, above = here, found
            continue
        links += 1
        if links > LINKS:
            raise OSError("too many links on the way to %s" % path)
        target = os.readlink(here)
        if target.startswith("/"):
            at, above = "/", os.lstat("/")
        todo[:0] = target.split("/")


def _is_sticky(found: os.stat_result) -> bool:
    """A folder in which names can be removed by their owners only, such as /tmp."""
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)


def _is_own_group(gid: int) -> bool:
    """Whether nobody else is in a group: many systems give each user one, and let it write."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_primary = gid == user.pw_gid and group.gr_name == user.pw_name
    return is_primary and set(group.gr_mem) <= {user.pw_name}


def open_own(path: str, flags: int, mode: int = 0o600, uid: int | None = None) -> int:
    """Open a file that belongs to us (or to user `uid`) without following a link or waiting for a pipe.

    Returns a descriptor. Raises `NotPrivate` for anything else that lies there, OSError as open() does.
    """
    more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | more, mode)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate("%s is no file" % path)
        _check_owner(found, uid)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take_lock(path: str, text: str) -> tuple[int | None, str]:
    """Lock a file and write `text` into it: (descriptor, ""). When it is held: (None, its holder's text).

    The kernel lets go of it when the descriptor is closed, however that comes. Raises as `open_own`.
    """
    while True:
        lock = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.read(lock, 200).decode("utf-8", "replace")
            os.close(lock)
            return None, said
        if _is_still(lock, path):
            os.truncate(lock, 0)
            os.write(lock, text.encode())
            return lock, ""
        os.close(lock)  # the one before us has removed it meanwhile


def lock_path(kind: str, *words: str) -> str:
    """Where the lock of such words lies, in the own folder; locks there that nobody holds are removed.

    Raises `NotPrivate` as `own_folder` does.
    """
    folder = own_folder()
    for name in os.listdir(folder):
        if name.startswith(kind + "-") and name.endswith(".lock"):
            left = os.path.join(folder, name)
            try:
                lock, _ = take_lock(left, "")
                if lock is not None:
                    drop_lock(lock, left)  # of a process that was killed
            except OSError:
                continue  # it was being removed
    text = "-".join(words)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in text)
    check = zlib.crc32(text.encode("utf-8", "backslashreplace"))  # for what is cut and replaced
    return os.path.join(folder, "%s-%s-%08x.lock" % (kind, plain[:150], check))


def drop_lock(lock: int, path: str) -> None:
    """Remove a lock's file while it is held, so that nobody waits for a file that is gone."""
    os.unlink(path)
    os.close(lock)


def _is_still(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def replace_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file beside `path` under a random name, then rename it: a reader sees the old or the new.

    Raises OSError; the file beside it is gone then.
    """
    part = "%s.%s" % (path, os.urandom(8).hex())
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
