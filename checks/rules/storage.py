"""Disks: room for what a run writes."""

from __future__ import annotations

from collections.abc import Iterator

from checks.facts import Disk, Fleet, NodeFacts, Unknown
from checks.finding import Finding, fail, passed, unknown, warn
from checks.profile import Profile
from checks.runner import check


@check("storage.free_space", scope="launch")
def free_space(node: NodeFacts, limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """Room for checkpoints and logs where the run directory will be, and the right to write there."""
    assert fleet.launch is not None
    asked = fleet.launch.run_dir_parent
    disk = node.disks.get(asked, Unknown(f"{asked} was not measured"))
    if isinstance(disk, Unknown):
        # A dead network mount answers like this: statfs never returns.
        yield unknown(f"{asked}: {disk.reason}", fix="mount | tail; is its server up?")
    elif not disk.is_folder:
        yield fail(f"{disk.path} is no folder", fix=f"name another place than {asked}")
    elif not disk.writable:
        yield fail(f"no right to write in {disk.path}", fix=f"sudo chown $USER {disk.path}")
    elif disk.free_bytes < fleet.launch.min_free_bytes:
        yield fail(
            f"{size(disk.free_bytes)} free in {disk.path}, the run needs {size(fleet.launch.min_free_bytes)}",
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
                value=f"{share:.3f}", expected=f"{limit}", source="profile",
                fix=f"du -xh --max-depth=1 {disk.path} | sort -h",
            )  # fmt: skip
    return passed(f"room in {disk.path}", value=str(disk.free_bytes))


def size(count: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
