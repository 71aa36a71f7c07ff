"""Disks and mounts: space for what a run writes, and file systems that answer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from checks import units
from checks.compare import each, each_node, majority
from checks.facts import Disk, Fleet, LaunchNeeds, Mount, NodeFacts, Unknown, known
from checks.finding import Finding, fail, need, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check


@check("storage.free_space", "launch")
def free_space(node: NodeFacts, limits: Profile, launch: LaunchNeeds) -> Finding:
    """The place of the run directory is writable, with space for checkpoints and logs.

    Bad: WARN over 90 % full or out of inodes; FAIL without right to write, or less than --min-free
    How: statfs in a child that can be abandoned
    Fix: du -xh --max-depth=1 DIR | sort -h
    """
    asked, least = launch.run_dir_parent, launch.min_free_bytes
    measured = node.disks.get(asked, Unknown(f"{asked} was not measured"))
    # A dead network mount is Unknown: statfs never returns.
    lacks = functools.partial(unknown, fix="mount | tail; is its server up?")
    disk = need(measured, f"{asked}: ", lacks)
    if not disk.is_folder:
        return fail(f"{disk.path} is not a folder", fix=f"name another place than {asked}")
    if not disk.writable:
        return fail(f"no right to write in {disk.path}", fix=f"sudo chown $USER {disk.path}")
    free, fix = disk.free_bytes, f"du -xh --max-depth=1 {disk.path} | sort -h"
    if free < least:
        text = f"{units.size(free)} free in {disk.path}, the run needs {units.size(least)}"
        return fail(text, free, least, fix=fix)
    for used, limit, what in (
        (disk.used_share, limits.disk_used_warn, "full"),
        (disk.inodes_used_share, limits.inodes_used_warn, "out of inodes"),
    ):
        if used > limit:
            text = f"{disk.path} is {used:.0%} {what}, {units.size(free)} free"
            return warn(text, f"{used:.3f}", str(limit), source="profile", fix=fix)
    return passed(f"enough space in {disk.path}", free)


@check("storage.disks", advisory=True)
def disks(mounts: Sequence[Mount], limits: Profile) -> Iterator[Finding]:
    """No local disk is full: /tmp, /var and the caches fill up in the middle of a run.

    Bad: WARN over 90 % full; FAIL over 95 % with less than 10 GiB left
    How: statfs of every local file system
    Fix: du -xh --max-depth=1 DIR | sort -h
    """
    least = limits.disk_left_fail_gib * 2**30
    limit, worse = limits.disk_used_warn, limits.disk_used_fail
    return _fullness(mounts, "full", lambda disk: disk.used_share, limit, worse, least)


@check("storage.inodes", advisory=True)
def inodes(mounts: Sequence[Mount], limits: Profile) -> Iterator[Finding]:
    """No local disk is out of inodes: the error is `No space left` with half of it free.

    Bad: WARN over 90 % of the inodes used, FAIL over 95 %
    How: statfs of every local file system
    Fix: du --inodes -x --max-depth=1 DIR | sort -n
    """
    limit, worse = limits.inodes_used_warn, limits.inodes_used_fail
    return _fullness(mounts, "out of inodes", lambda disk: disk.inodes_used_share, limit, worse)


def _fullness(
    mounts: Sequence[Mount],
    what: str,
    share: Callable[[Disk], float],
    warn_at: float,
    fail_at: float,
    least_bytes: float = math.inf,
) -> Iterator[Finding]:
    """WARN or FAIL for each disk over a share; a failure has less than `least_bytes` free."""
    is_good, unread = True, ""
    for mount in mounts:
        disk = mount.disk
        if mount.is_network or mount.read_only:
            continue  # a server's space is one finding elsewhere, not one on each node
        if isinstance(disk, Unknown):
            unread = f"{mount.path}: {disk}"
        elif (used := share(disk)) > warn_at:
            is_good = False
            bad = fail if used > fail_at and disk.free_bytes < least_bytes else warn
            text = f"{mount.path} is {used:.0%} {what}, {units.size(disk.free_bytes)} free"
            fix = f"du -xh --max-depth=1 {mount.path} | sort -h"
            yield bad(text, f"{used:.3f}", str(warn_at), fix=fix)
    if is_good:
        yield unknown(unread, because="storage.mounts") if unread else passed(f"no disk is {what}")


@check("storage.mounts", advisory=True)
def mounts_answer(mounts: Sequence[Mount]) -> Iterator[Finding]:
    """Every mounted file system answers.

    Why: A rank that touches a dead mount sleeps in the kernel and cannot be killed.
    Bad: FAIL if statfs gives no answer in 4 s, or a stale handle, or no connection
    How: statfs of every mount, each in a child of its own that can be abandoned
    Fix: is its server up? sudo umount -l PATH, then mount it again
    """
    lost = [(mount, mount.disk.reason) for mount in mounts if isinstance(mount.disk, Unknown)]
    dead = [(mount, reason) for mount, reason in lost if any(word in reason for word in _DEAD)]
    for mount, reason in dead:
        text = f"{mount.path} ({mount.kind} from {mount.source}): {reason}"
        fix = f"is its server up? sudo umount -l {mount.path}; sudo mount {mount.path}"
        yield fail(text, fix=fix)
    silent = [
        f"{mount.path}: {reason}"
        for mount, reason in lost
        # Another user's FUSE mount refuses everybody else and is fine.
        if not (mount.is_network and reason == "Permission denied")
    ]
    if silent and not dead:
        yield unknown("; ".join(silent[:3]), fix="stat -f PATH there")
    elif not dead:
        yield passed("all mounts answer", len(mounts))


_DEAD = ("no answer", "not connected", "Stale", "Input/output", "Host is down", "timed out")


@check("storage.mounts_equal", "fleet", advisory=True)
def mounts_equal(fleet: Fleet) -> Iterator[Finding]:
    """The shared folders are mounted on every node.

    Why: Where one is not, the run writes its part of a checkpoint into an empty local folder.
    Bad: WARN if a network file system of most nodes is not mounted
    How: mounts of nfs, lustre, fuse and the like: path and source
    Fix: sudo mount PATH; /etc/fstab
    """
    shared = [_shared(mounts) for mounts in known(node.mounts for node in fleet.reached)]
    every = {path for paths in shared for path in paths}
    common = {path for path in every if majority(path in paths for paths in shared)}

    def judge(_node: NodeFacts, mounts: Sequence[Mount]) -> Finding:
        missing = sorted(common - _shared(mounts))
        if not missing:
            return passed("network mounts as on the others")
        fix = f"sudo mount {missing[0].split(' from ')[0]}"
        return warn(f"not mounted: {', '.join(missing)}", source="majority", fix=fix)

    return each_node(fleet, "mounts", judge)


def _shared(mounts: Sequence[Mount]) -> set[str]:
    """`/data from server:/export` of each network file system."""
    return {f"{one.path} from {one.source}" for one in mounts if one.is_network}


@check("storage.token", "fleet")
def shared_token(fleet: Fleet, limits: Profile) -> Iterable[Finding]:
    """The shared folder, or that of the run directories, is one and the same on all nodes.

    Why: Ranks that do not see the run directory of rank 0 end the run at its start.
    Bad: WARN over 2 s, and where no node sees the head's run directories, which the nodes may share
        without it; FAIL missing, of another launch, or hanging
    How: the head writes a token file into the folder of --shared, else, with a launch on several
        nodes, of --outputs; every node reads it back
    Fix: mount on that node, and the server's name in it
    """
    if fleet.token is None:
        return [skip("no --shared folder was named")]
    seen = {node.name for node in fleet.reached if node.token == fleet.token}
    lost = [node.name for node in fleet.reached if node.name not in seen]
    if fleet.token_of_run and not seen and lost:
        text = "no node sees the head's folder of runs; whether they share one is not known"
        return [warn(text, nodes=tuple(lost), fix="--active --shared FOLDER proves it")]
    what = "the folder of runs" if fleet.token_of_run else "the shared folder"

    def judge(node: NodeFacts) -> Finding:
        token, token_s = node.token, node.token_s
        if isinstance(token, Unknown) and "no end" in token.reason:
            return fail(f"{what} hangs")
        unread = f"{what} is not the head's, its token cannot be read: "
        if need(token, unread, fail) != fleet.token:
            return fail(f"{what} holds another token: not the same folder, or a stale view")
        if isinstance(token_s, float) and token_s > limits.token_warn_s:
            return warn(
                f"reading a few bytes took {units.duration(token_s)}", fix="nfsstat; its load"
            )
        return passed("the same folder")

    return each(fleet, judge)
