"""Whether another user could have made or changed what a path names; on nodes and on the head."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator

LOCAL_TYPES = tuple("ext xfs btrfs tmpfs overlay zfs f2fs bcachefs ramfs squashfs devtmpfs".split())
LINKS = 40  # on the way to a file, the kernel's limit


class NotPrivate(OSError):
    """Another user of this machine made or changed, or could change, what a path names."""


def why_untrusted(path: str) -> str:
    """Why another user than root could have made or changed `path`, a folder or link on the way."""
    for at, found, _ in _way(path):
        why = changed_by_others(found)
        if why:
            return "%s %s" % (at, why)
    return ""


def changed_by_others(found: os.stat_result) -> str:
    """Why another user than root could change a file with this status; "" when none could."""
    if found.st_uid not in (0, os.getuid()):
        return "belongs to user %d" % found.st_uid
    # In a sticky folder such as /tmp others can add names, but not remove ours.
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(found.st_mode) or is_sticky:
        return ""
    group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    if group or found.st_mode & stat.S_IWOTH:
        return "can be changed by other users (mode %04o)" % stat.S_IMODE(found.st_mode)
    return ""


def made_by_others(path: str) -> str:
    """Which part of `path` another user made in a world-writable folder; "" for none.

    Weaker than `why_untrusted`: folders of a project's group or of another owner are fine. Of a
    path that does not exist the existing part counts. Does not touch network drives: a dead one
    would never answer, and their files are the same everywhere.
    """
    try:
        for at, found, above in _way(path, _far_mounts()):
            if above.st_mode & stat.S_IWOTH and found.st_uid not in (0, os.getuid()):
                why = "%s belongs to user %d and is in a folder that is open to all"
                return why % (at, found.st_uid)
    except OSError:
        pass  # the rest does not exist
    return ""


def refuse_made_by_others(*paths: str) -> None:
    """Raises `NotPrivate` for a path that `made_by_others` objects to."""
    for path in paths:
        why = made_by_others(path)
        if why:
            raise NotPrivate(why)


def refuse_open_folder(folder: str) -> None:
    """Raises `NotPrivate` for a folder of this machine in which every user can make files.

    What runs there looks for files beside it: settings of W&B, modules. Network drives are left
    out, as above.
    """
    found = None
    try:
        for _, found, _ in _way(folder, _far_mounts()):
            pass
    except OSError:
        return  # it does not exist
    if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH:
        raise NotPrivate("every user can put files into %s" % folder)


def _far_mounts() -> set[str]:
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
    """(name, its lstat, its folder's) of all on the way to a file, with links and their targets."""
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


def _is_own_group(gid: int) -> bool:
    """Whether this user is alone in a group: many systems give each user a group that may write."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_primary = gid == user.pw_gid and group.gr_name == user.pw_name
    return is_primary and set(group.gr_mem) <= {user.pw_name}


def check_owner(found: os.stat_result, uid: int) -> None:
    if found.st_uid != uid:
        raise NotPrivate("belongs to user %d" % found.st_uid)


def open_own(path: str, flags: int, uid: int | None = None) -> int:
    """Open a regular file of this user, or of `uid`. Raises `NotPrivate` and OSError."""
    more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would let us wait
    descriptor = os.open(path, flags | more, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate("%s is not a file" % path)
        check_owner(found, os.getuid() if uid is None else uid)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
