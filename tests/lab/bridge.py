"""Networks of labs: a bridge each, which nobody else has."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
from pathlib import Path


class LabError(RuntimeError):
    """The lab itself failed, not what is tested in it."""


def ip(*commands: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True,
        timeout=20, check=False,
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"ip: {done.stderr.strip()}")


def take_subnet() -> int:
    """Make the bridge of a subnet nobody uses; creating it is what takes it, so labs may race."""
    remove_orphans()
    for subnet in range(256):
        name, address = f"cclab{subnet}", ipaddress.ip_address(f"10.231.{subnet}.1")
        # A bridge without an address of its own takes the lowest of its ports, and forgets its
        # neighbours, the permanent ones too, whenever that becomes another.
        mac = f"02:cb:00:{subnet:02x}:00:01"
        done = subprocess.run(
            ["ip", "link", "add", name, "address", mac, "type", "bridge"], capture_output=True,
            text=True, timeout=20, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            alias = f"clusterctl-lab:{os.getpid()}:{_started(os.getpid())}"
            ip(f"link set {name} alias {alias} up", f"addr add {address}/24 dev {name}")
            return subnet
        if "exists" not in done.stderr:
            raise LabError(f"ip link add: {done.stderr.strip()}")
    raise LabError("all 256 subnets of 10.231.0.0/16 are in use")


def remove_orphans() -> None:
    """Bridges of test runs that were killed."""
    for path in Path("/sys/class/net").glob("cclab*"):
        with contextlib.suppress(OSError, ValueError, LabError):
            mark, pid, started = (path / "ifalias").read_text().strip().split(":")
            if mark == "clusterctl-lab" and _started(int(pid)) != started:
                for link in [*(cable.name for cable in (path / "brif").iterdir()), path.name]:
                    with contextlib.suppress(LabError):  # the kernel was quicker
                        ip(f"link del {link}")


def _started(pid: int) -> str:
    """A process's start time in clock ticks; tells it from a later one with the same pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
