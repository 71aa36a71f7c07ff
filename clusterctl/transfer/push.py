"""Copy a file or a folder to nodes: packed once, checked on arrival, put in place by one rename."""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import TransportError, UsageError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.cluster import Cluster
from clusterctl.transport.base import Progress
from trainer.runlog.atomic_file import sha256_of

END_S = 5.0  # for nodes to remove their parts of a push that is interrupted
STALL_S = 20.0  # without an acknowledgement, after which a node is given up
SLOWEST_BYTES_S = 2e6  # that the head can send, for the deadline of all nodes
BULK_WIDTH = 16  # more transfers at once share the same wire, and one interpreter


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes where; `size` in bytes, `mode` of a single file."""

    source: Path
    dest: str
    folder: bool
    files: int
    size: int
    mode: int

    def sentence(self) -> str:
        what = f"folder, {counted(self.files, 'file')}" if self.folder else "file"
        return f"{self.source} ({what}, {units.size(self.size)}) to {self.dest}"


def make_plan(source: Path, dest: str) -> Plan:
    """`dest` is the full name, or a folder when it ends in /. Raises `UsageError`."""
    source = Path(os.path.expanduser(source)).absolute()  # noqa: PTH111 - Path's raises for ~nobody
    if dest.endswith("/"):
        dest += source.name
    if dest in ("", ".", "..", "~") or dest.endswith(("/.", "/..")):
        hint = "name the file or folder it becomes"
        raise UsageError(f"{dest!r} is not a destination", hint=hint)
    try:
        if source.is_dir():
            sizes = [path.lstat().st_size for path in _members(source)]
            return Plan(source, dest, True, len(sizes), sum(sizes), 0)
        status = source.stat()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    if not source.is_file():
        raise UsageError(f"{source} is neither a file nor a folder")
    return Plan(source, dest, False, 1, status.st_size, status.st_mode & 0o777)


def _members(folder: Path) -> Iterator[Path]:
    """Files and links in a folder. Raises `UsageError` for sockets, pipes and devices."""
    for place, names, files in os.walk(folder):
        for path in (Path(place, name) for name in [*names, *files]):
            if path.is_symlink() or path.is_file():
                yield path
            elif not path.is_dir():
                raise UsageError(f"{path} is neither a file, a folder nor a link")


@dataclass(slots=True)
class Parcel:
    """The bytes that go to every node: the file itself, or one archive of the folder."""

    plan: Plan
    path: Path
    size: int
    sha256: str
    sent: dict[str, int] = field(default_factory=dict)  # node name: bytes sent, for progress
    under_way: set[str] = field(default_factory=set)  # nodes that hold a part of it
    is_ended: bool = False

    def end(self) -> None:
        """No node gets more of it; waits a moment until each has removed its part."""
        self.is_ended = True
        until_s = time.monotonic() + END_S
        while self.under_way and time.monotonic() < until_s:
            time.sleep(0.05)


@contextmanager
def packed(plan: Plan) -> Iterator[Parcel]:
    """The parcel of a plan; a folder's archive is a temporary file. Raises `UsageError`."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-push-") as scratch:
        try:
            path = _archive(plan, Path(scratch)) if plan.folder else plan.source
            parcel = Parcel(plan, path, path.stat().st_size, sha256_of(path))
        except OSError as error:
            raise UsageError(f"{plan.source} cannot be read: {error.strerror}") from None
        yield parcel


def _archive(plan: Plan, scratch: Path) -> Path:
    def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Owners mean nothing on another machine; files become those of the user who logs in."""
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    path = scratch / "folder.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(plan.source, arcname=".", filter=without_owner)
    return path


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result on one node; `error` is the node's own sentence."""

    state: str  # new, replaced, same, failed
    sent: int = 0
    error: str | None = None


class _Counted(io.FileIO):
    """The parcel's file as one node reads it; counts the bytes in `parcel.sent`."""

    def __init__(self, parcel: Parcel, name: str) -> None:
        super().__init__(parcel.path, "rb")
        self._parcel, self._name = parcel, name

    def read(self, size: int | None = -1) -> bytes:
        if self._parcel.is_ended:
            raise InterruptedError("the push was interrupted")
        data: bytes = super().read(-1 if size is None else size) or b""
        self._parcel.sent[self._name] = self._parcel.sent.get(self._name, 0) + len(data)
        return data


def deliver(parcel: Parcel, cluster: Cluster, node: Node, progress: Progress) -> Delivery:
    """Copy the parcel to one node. Raises `TransportError` when the node cannot be reached."""
    from clusterctl.transport import fabric_library
    from clusterctl.transport.channels import ParamikoConnection

    plan = parcel.plan
    common = {"dest": plan.dest, "folder": plan.folder, "mode": plan.mode}
    common |= {"size": parcel.size, "sha256": parcel.sha256, "token": secrets.token_hex(8)}
    connection = cluster.transport.connect(node, cluster.limits, progress)

    def ask(**args: Any) -> dict[str, Any]:
        # The node hashes and unpacks: 50 MB/s is slow for either.
        patience_s = cluster.limits.command_s + parcel.size / 50e6 * 2
        return payload.probe(connection, "push", args, patience_s)

    try:
        if not isinstance(connection, ParamikoConnection):
            raise TransportError("channel", "this transport carries no files")
        try:
            handed = fabric_library.over(connection, node, STALL_S)  # before anything is made there
        except TransportError as error:
            if not connection.transport.is_active():
                raise
            return Delivery("failed", error=f"{error}; {error.hint}" if error.hint else str(error))
        place = ask(**common, step="prepare")
        if place.get("error"):
            return Delivery("failed", error=str(place["error"]))
        if place["same"]:
            return Delivery("same")
        parcel.under_way.add(node.name)
        progress.enter("command")
        try:
            with _Counted(parcel, node.name) as file:
                handed.put(file, remote=place["part"])
        except TimeoutError:
            raise TransportError("command", f"took no data for {units.duration(STALL_S)}") from None
        except (OSError, EOFError) as error:
            if not connection.transport.is_active():
                raise TransportError("command", "the connection was lost") from None
            ask(step="drop", part=place["part"])
            return Delivery("failed", error=str(error) or type(error).__name__)
        done = ask(**{**common, "dest": place["dest"]}, step="install", part=place["part"])
        if done.get("error"):
            return Delivery("failed", parcel.size, str(done["error"]))
        return Delivery("replaced" if place["there"] else "new", parcel.size)
    finally:
        parcel.under_way.discard(node.name)
        connection.close()


def deadline_s(parcel: Parcel, cluster: Cluster) -> float:
    """For all nodes, unless the user set it: the time for all bytes at the slowest speed."""
    bytes_s = len(cluster.nodes) * parcel.size / SLOWEST_BYTES_S
    return cluster.limits.run_s or cluster.limits.total_s * 2 + bytes_s


def progress_line(parcel: Parcel, total: int, started: float) -> Callable[[int], str]:
    """The line on a terminal for a number of nodes that are done: nodes, bytes, speed."""

    def line(done: int) -> str:
        sent = sum(parcel.sent.values())
        speed = units.rate(sent / max(0.1, time.monotonic() - started))
        whole = units.size(parcel.size * total)
        return f"{done}/{total} nodes, {units.size(sent)} of {whole}, {speed}"

    return line
