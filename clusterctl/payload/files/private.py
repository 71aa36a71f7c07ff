"""Folders and files that no other user of a machine can make first, change or read.

Any user can take a name in /tmp and /dev/shm first, with a folder, a link, a pipe or a file. So
what we make there has a random name and is created exclusively; what needs a known name is in our
own folder, which is checked before use. Runs on nodes and on the head.
"""

from __future__ import annotations

import glob
import os
import stat
import zlib
from collections.abc import Callable

from clusterctl.payload.files.locks import drop_lock, take_lock, try_lock
from clusterctl.payload.files.ownership import NotPrivate, check_owner, why_untrusted
from clusterctl.payload.proc_files import or_none

# On the machine, never on a shared folder: a stalled mount must not look like a stalled rank.
LOCAL = ("/dev/shm", "/tmp")
RUNTIME = ("/run", "/run/user/%d")  # root's, other users': others cannot write there
LOGIND = "/run/systemd/users"  # is there where logind is
LINGER = "/var/lib/systemd/linger"  # a file for each user who lingers

_held: dict[tuple[int, int], int] = {}  # (device, inode) of own folders -> descriptor


def new_folder(kind: str, parents: tuple[str, ...] = LOCAL) -> str:
    """Make a folder (0700) with a random name in the first of `parents` that allows it."""
    places = [(parent, "clusterctl-%s-%s" % (kind, os.urandom(8).hex())) for parent in parents]
    return _first(places, lambda path: os.mkdir(path, 0o700), "no folder can be made")


def own_folder() -> str:
    """This user's folder on this machine (0700), for what the user's programs must find.

    Created where missing, in the next place where another user has taken the name. Raises
    `NotPrivate` with the reason of each place when there is none.
    """
    return _hold(_first(places_of(os.getuid()), _make_own, "no private folder"))


def own_path(name: str) -> str:
    """Path of a file in the own folder, or in the one that has it. Raises `NotPrivate`.

    The best place is not always the same: /run/user is there from a login on, and other places are
    better from the time on when the user no longer lingers.
    """
    for folder in own_folders():
        if os.path.lexists(os.path.join(folder, name)):
            return os.path.join(_hold(folder), name)
    return os.path.join(own_folder(), name)


def name_of_run(kind: str, ending: str, *run_and_node: str) -> str:
    """The name of an own file about a run, or about a run on one node. It is short, as the kernel
    allows 107 bytes for the path of a socket."""
    check = zlib.crc32("\0".join(run_and_node).encode("utf-8", "backslashreplace"))
    return "%s-%s-%08x.%s" % (kind, run_and_node[0][-24:], check, ending)


def own_files(pattern: str) -> list[str]:
    """Paths of this user's own files whose names match, in all of its own folders."""
    return [
        path
        for folder in own_folders()
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
    ]


def own_folders() -> list[str]:
    """The folders of this user that are there and that nobody else can have changed."""
    found = []
    for parent, name in places_of(os.getuid()):
        path = os.path.join(parent, name)
        try:
            if not why_untrusted(parent):
                _check_own(path)
                found.append(path)
        except OSError:
            continue
    return found


def lock_path(kind: str, *words: str) -> str:
    """Path of a lock in an own folder; removes locks without a holder. Raises `NotPrivate`."""
    for left in own_files(kind + "-*.lock"):
        try:
            lock, _ = take_lock(left, "")
            if lock is not None:
                drop_lock(lock, left)  # of a process that was killed
        except OSError:
            continue  # it was being removed
    text = "-".join(words)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in text)
    check = zlib.crc32(text.encode("utf-8", "backslashreplace"))  # for what is cut and replaced
    return own_path("%s-%s-%08x.lock" % (kind, plain[:150], check))


def places_of(uid: int) -> list[tuple[str, str]]:
    """(parent, name) of where a user's own folder may be, in the order in which they are tried.

    A run outlives the session that launched it. When a user's last session ends, logind removes
    /run/user/UID and, with RemoveIPC, its default, what the user has in /dev/shm (logind.conf(5)):
    then /tmp comes first.
    """
    places = [(RUNTIME[0] if uid == 0 else RUNTIME[1] % uid, "clusterctl")]
    places += [(parent, "clusterctl-%d" % uid) for parent in LOCAL]
    is_kept = uid == 0 or not os.path.isdir(LOGIND) or lingers(uid)
    return places if is_kept else places[::-1]


def folders_of(uid: int) -> list[str]:
    """Those that are there of a user's own folder; no links, which lead elsewhere."""
    paths = [os.path.join(*place) for place in places_of(uid)]
    found = [(path, or_none(os.lstat, path)) for path in paths]
    return [path for path, one in found if one and one.st_uid == uid and stat.S_ISDIR(one.st_mode)]


def lingers(uid: int) -> bool:
    """Whether logind keeps what belongs to a user without a session (loginctl(1))."""
    import pwd

    try:
        return os.path.exists(os.path.join(LINGER, pwd.getpwuid(uid).pw_name))
    except KeyError:
        return False


def _hold(folder: str) -> str:
    """Keep systemd-tmpfiles out of an own folder as long as this process lives.

    It removes from /tmp what was not used for days (10 on many systems), but skips a folder that a
    process has locked (tmpfiles.d(5)).
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        held = _held.setdefault((found.st_dev, found.st_ino), descriptor)
        if held != descriptor:
            os.close(descriptor)
        try_lock(held, shared=True)
    except OSError:
        pass  # it is in there now, or this file system has no locks; the next call tries again
    return folder


def _first(places: list[tuple[str, str]], make: Callable[[str], None], failure: str) -> str:
    """Path of the first of (parent, name) that can be made where others cannot remove it."""
    whys = []
    for parent, name in places:
        path = os.path.join(parent, name)
        try:
            why = why_untrusted(parent)
            if why:
                raise NotPrivate(why)
            make(path)
            return path
        except OSError as error:
            whys.append("%s: %s" % (path, error.strerror or error))
    raise NotPrivate("%s (%s)" % (failure, "; ".join(whys)))


def _make_own(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    _check_own(path)


def _check_own(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate("is not a folder")
    check_owner(found, os.getuid())
    if found.st_mode & 0o077:
        raise NotPrivate("is open to other users (mode %04o)" % stat.S_IMODE(found.st_mode))


def replace_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file beside `path`, then rename it: readers see old or new. Raises OSError.

    Root could put a file in the place of /dev/null or /dev/stdout: only plain files are replaced.
    """
    try:
        mode_now = os.stat(path).st_mode
    except FileNotFoundError:
        mode_now = stat.S_IFREG
    if not stat.S_ISREG(mode_now) and not stat.S_ISDIR(mode_now):  # a folder refuses by itself
        raise OSError("%s is no plain file" % path)
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
