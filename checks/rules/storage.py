"""Disks and mounts: room for what a run writes, and file systems that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from checks.facts import NOT_ASKED, Disk, Fleet, Mount, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, majority


@check(
    "storage.free_space",
    scope="launch",
    bad=(
        "WARN over 90 % full or out of inodes; FAIL without right to write, or less than --min-free"
    ),
    how="statfs in a child that can be abandoned",
    fix="du -xh --max-depth=1 DIR | sort -h",
)
def free_space(node: NodeFacts, limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """The place of the run directory is writable, with space for checkpoints and logs."""
    assert fleet.launch is not None
    asked = fleet.launch.run_dir_parent
    disk = node.disks.get(asked, Unknown(f"{asked} was not measured"))
    if isinstance(disk, Unknown):
        # A dead network mount answers like this: statfs never returns.
        yield unknown(f"{asked}: {disk.reason}", fix="mount | tail; is its server up?")
    elif not disk.is_folder:
        yield fail(f"{disk.path} is not a folder", fix=f"name another place than {asked}")
    elif not disk.writable:
        yield fail(f"no right to write in {disk.path}", fix=f"sudo chown $USER {disk.path}")
    elif disk.free_bytes < fleet.launch.min_free_bytes:
        yield fail(
            f"{size(disk.free_bytes)} free in {disk.path}, the run needs "
            f"{size(fleet.launch.min_free_bytes)}",
            value=str(disk.free_bytes),
            expected=str(fleet.launch.min_free_bytes),
            fix=f"du -xh --max-depth=1 {disk.path} | sort -h",
        )
    else:
        yield _judge_use(disk, limits)


def _judge_use(disk: Disk, limits: Profile) -> Finding:
    used = 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
    inodes_used = 1 - disk.inodes_free / disk.inodes_total if disk.inodes_total else 0.0
    for share, limit, what in (
        (used, limits.disk_used_warn, "full"),
        (inodes_used, limits.inodes_used_warn, "out of inodes"),
    ):
        if share > limit:
            return warn(
                f"{disk.path} is {share:.0%} {what}, {size(disk.free_bytes)} free",
                value=f"{share:.3f}",
                expected=f"{limit}",
                source="profile",
                fix=f"du -xh --max-depth=1 {disk.path} | sort -h",
            )
    return passed(f"room in {disk.path}", value=str(disk.free_bytes))


@check(
    "storage.disks",
    needs=("mounts",),
    advisory=True,
    bad="WARN over 90 % full; FAIL over 95 % with less than 10 GiB left",
    how="statfs of every local file system",
    fix="du -xh --max-depth=1 DIR | sort -h",
)
def disks(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No local disk is full: /tmp, /var and the caches fill up in the middle of a run."""
    yield from _fullness(
        node,
        lambda disk: 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0,
        limits.disk_used_warn,
        limits.disk_used_fail,
        limits.disk_left_fail_gib,
        "full",
    )


@check(
    "storage.inodes",
    needs=("mounts",),
    advisory=True,
    bad="WARN over 90 % of the inodes used, FAIL over 95 %",
    how="statfs of every local file system",
    fix="du --inodes -x --max-depth=1 DIR | sort -n",
)
def inodes(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No local disk is out of inodes: it says `No space left` with half of it free."""
    yield from _fullness(
        node,
        lambda disk: 1 - disk.inodes_free / disk.inodes_total if disk.inodes_total else 0.0,
        limits.inodes_used_warn,
        limits.inodes_used_fail,
        None,
        "out of inodes",
    )


def _fullness(
    node: NodeFacts,
    share: Callable[[Disk], float],
    warn_at: float,
    fail_at: float,
    left_gib: float | None,
    what: str,
) -> Iterator[Finding]:
    assert isinstance(node.mounts, tuple)
    bad, blind = False, ""
    for mount in node.mounts:
        disk = mount.room
        if mount.is_network or mount.read_only:
            continue  # a server's room is one finding elsewhere, not one on each node
        if isinstance(disk, Unknown):
            blind = f"{mount.path}: {disk.reason}"
            continue
        used = share(disk)
        little = left_gib is None or disk.free_bytes < left_gib * 2**30
        if used > warn_at:
            bad = True
            yield (fail if used > fail_at and little else warn)(
                f"{mount.path} is {used:.0%} {what}, {size(disk.free_bytes)} free",
                value=f"{used:.3f}",
                expected=f"{warn_at}",
                fix=f"du -xh --max-depth=1 {mount.path} | sort -h",
            )
    if not bad and blind:
        yield unknown(blind, because="storage.mounts")
    elif not bad:
        yield passed(f"no disk is {what}")


@check(
    "storage.mounts",
    needs=("mounts",),
    advisory=True,
    bad="FAIL if statfs gives no answer in 4 s, or a stale handle, or no connection",
    how="statfs of every mount, each in a child of its own that can be abandoned",
    fix="is its server up? sudo umount -l PATH, then mount it again",
)
def mounts(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """Every mounted file system answers.

    A rank that touches a dead mount sleeps in the kernel and cannot be killed.
    """
    assert isinstance(node.mounts, tuple)
    dead = [
        (mount, mount.room.reason)
        for mount in node.mounts
        if isinstance(mount.room, Unknown) and _is_dead(mount.room.reason)
    ]
    for mount, reason in dead:
        yield fail(
            f"{mount.path} ({mount.kind} from {mount.source}): {reason}",
            fix=f"is its server up? sudo umount -l {mount.path}; sudo mount {mount.path}",
        )
    silent = [
        f"{mount.path}: {mount.room.reason}"
        for mount in node.mounts
        if isinstance(mount.room, Unknown)
        and not _is_dead(mount.room.reason)
        # Another user's FUSE mount refuses everybody else and is fine.
        and not (mount.is_network and mount.room.reason == "Permission denied")
    ]
    if silent and not dead:
        yield unknown("; ".join(silent[:3]), fix="stat -f PATH there")
    elif not dead:
        yield passed("all mounts answer", value=str(len(node.mounts)))


def _is_dead(reason: str) -> bool:
    """Not answering or stale."""
    return "no answer" in reason or any(
        word in reason
        for word in ("not connected", "Stale", "Input/output", "Host is down", "timed out")
    )


@check(
    "storage.mounts_equal",
    scope="fleet",
    advisory=True,
    bad="WARN if a network file system of most nodes is not mounted",
    how="mounts of nfs, lustre, fuse and the like: path and source",
    fix="sudo mount PATH; /etc/fstab",
)
def mounts_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The shared folders are mounted on every node.

    Where one is not, the run writes its part of a checkpoint into an empty local folder.
    """
    seen: dict[str, tuple[Mount, ...]] = {}
    for node in fleet.reached:
        if isinstance(node.mounts, Unknown):
            asked = node.mounts != NOT_ASKED
            yield (unknown if asked else skip)(node.mounts.reason, nodes=(node.name,))
        else:
            seen[node.name] = tuple(one for one in node.mounts if one.is_network)
    paths = {f"{one.path} from {one.source}" for mounts in seen.values() for one in mounts}
    for name, mine in seen.items():
        have = {f"{one.path} from {one.source}" for one in mine}
        lacking = [
            path
            for path in sorted(paths - have)
            if majority(
                {
                    other: path in {f"{one.path} from {one.source}" for one in theirs}
                    for other, theirs in seen.items()
                }
            ).value
        ]
        if lacking:
            yield warn(
                f"not mounted: {', '.join(lacking)}",
                nodes=(name,),
                source="majority",
                fix=f"sudo mount {lacking[0].split(' from ')[0]}",
            )
        else:
            yield passed("network mounts as on the others", nodes=(name,))


@check(
    "storage.token",
    scope="fleet",
    bad="WARN over 2 s; FAIL missing, of another launch, or hanging",
    how="the head writes a token file into the folder of --shared, every node reads it back",
    fix="mount | grep DIR on that node; is it the same server?",
)
def token(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The shared folder is one and the same on all nodes."""
    if fleet.token is None:
        yield skip("no --shared folder was named")
        return
    for node in fleet.reached:
        names, fix = (node.name,), "mount on that node, and the server's name in it"
        if isinstance(node.token, Unknown):
            slow = "no end" in node.token.reason
            yield fail(
                "the shared folder hangs"
                if slow
                else f"the token cannot be read: {node.token.reason}",
                nodes=names,
                fix=fix,
            )
        elif node.token != fleet.token:
            yield fail(
                "another token is there: not the same folder, or a stale view", nodes=names, fix=fix
            )
        elif isinstance(node.token_s, float) and node.token_s > limits.token_warn_s:
            yield warn(
                f"reading a few bytes took {node.token_s:.1f} s",
                nodes=names,
                fix="nfsstat; its load",
            )
        else:
            yield passed("the same folder", nodes=names)


def size(count: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
