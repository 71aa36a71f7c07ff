"""One file over sftp, in either direction, that continues where it was cut, and is checked."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Connection
from trainer.runlog.atomic_file import put_in_place, sha256_of, sync

CHUNK_BYTES = 1 << 18
LEFT_FREE = 1 << 30  # bytes of a disk here that no node may fill
MOST_ENTRIES = 100_000  # of a folder there
MOST_DEPTH = 64  # folders in folders
STALL_S = 30.0  # without an answer, after which the connection is given up


class Damaged(Exception):
    """What arrived is not what was promised, from its first byte on."""


def sftp_over(connection: Connection, node: Node) -> Any:
    """An sftp session. Raises `TransportError`."""
    from clusterctl.transport import fabric_library
    from clusterctl.transport.channels import ParamikoConnection

    if not isinstance(connection, ParamikoConnection):
        raise TransportError("channel", "this transport carries no files")
    return fabric_library.over(connection, node, STALL_S).sftp()


def fetch(
    sftp: Any,
    remote: str,
    local: Path,
    size: int,
    sha256: str,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Copy a file to this machine; what an earlier call has got is not read again.

    Raises `Damaged`, OSError (FileNotFoundError: it is gone) and `TransportError`.
    """
    part = local.with_name(f".{local.name}.{sha256[:16]}.part")
    local.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if part.stat().st_size > size:
            part.unlink()
    with part.open("ab") as out, closing(sftp.open(remote, "rb")) as source:
        for data in sftp.blocks(source, out.tell(), size):
            out.write(data)
            if is_over():
                raise TransportError("command", "it was ended here")
    found = sha256_of(part)
    if found != sha256:
        part.unlink()
        raise Damaged(f"{remote} is damaged: its SHA-256 differs")
    sync(part)
    put_in_place(part, local)


def get(sftp: Any, remote: str, out: BinaryIO, most: int) -> None:
    """Copy a file to this machine that has at most so many bytes, whatever the node says.

    Raises OSError (FileNotFoundError: it is not there) and `TransportError`.
    """
    with closing(sftp.open(remote, "rb")) as source:
        size = source.stat().st_size
        free = shutil.disk_usage(os.path.dirname(out.name)).free - LEFT_FREE  # noqa: PTH120
        if type(size) is not int or not 0 <= size <= most:
            raise TransportError(
                "command", f"{remote} has {size} bytes, at most {most:,} are taken"
            )
        if size > free:
            raise TransportError("command", f"{remote} has {size:,} bytes; the disk here is full")
        for data in sftp.blocks(source, 0, size):
            out.write(data)


def entries(sftp: Any, path: str, most: int = MOST_ENTRIES) -> list[Any]:
    """What is in a folder there. Raises OSError, and `TransportError` for more than `most`."""
    found: list[Any] = sftp.entries(path, most)
    if len(found) > most:
        raise TransportError("parse", f"{path} lists more than {most:,} files")
    return found


def put(sftp: Any, local: Path, remote: str, mark: str) -> None:
    """Copy a file to the node; `mark` names its content and who sends it, so that a part is
    continued only by the same. Raises OSError and `TransportError`."""
    folder, _, name = remote.rpartition("/")
    part = f"{folder}/.{name}.{mark[:24]}.part"
    size = local.stat().st_size
    at = 0
    with suppress(FileNotFoundError):
        at = sftp.stat(part).st_size
    mode = "ab" if 0 < at <= size else "wb"
    with local.open("rb") as source, closing(sftp.open(part, mode)) as out:
        out.set_pipelined(True)
        source.seek(at if mode == "ab" else 0)
        while data := source.read(CHUNK_BYTES):
            out.write(data)
    arrived = sftp.stat(part).st_size
    if arrived != size:
        sftp.remove(part)
        raise TransportError("command", f"{remote}: {arrived:,} of {size:,} bytes arrived")
    sftp.posix_rename(part, remote)


def make_folders(sftp: Any, path: str) -> None:
    """As `mkdir -p`, closed to others; another may make the same at once. Raises OSError."""
    try:
        _make_folder(sftp, path)
    except FileNotFoundError:
        above = path.rpartition("/")[0]
        if not above:
            raise
        make_folders(sftp, above)
        _make_folder(sftp, path)


def _make_folder(sftp: Any, path: str) -> None:
    try:
        sftp.mkdir(path, 0o700)
    except FileNotFoundError:
        raise
    except OSError:  # it exists, or cannot be made: servers do not say which
        if sftp.stat(path) is None:
            raise


def remove_folder(sftp: Any, path: str, depth: int = 0) -> None:
    """All of a folder; what is gone already is no error. Raises OSError and `TransportError`."""
    if depth > MOST_DEPTH:
        raise TransportError("parse", f"{path} is nested too deeply")
    try:
        inside = entries(sftp, path)
    except FileNotFoundError:
        return
    for entry in inside:
        if "/" in entry.filename or entry.filename in ("", ".", ".."):
            raise TransportError("parse", f"{path} lists what is not in it")
        inner = f"{path}/{entry.filename}"
        if stat.S_ISDIR(entry.st_mode or 0):
            remove_folder(sftp, inner, depth + 1)
        else:
            sftp.remove(inner)
    sftp.rmdir(path)


def size_on(sftp: Any, path: str) -> int | None:
    """Bytes of a file there; None without one."""
    try:
        size = sftp.stat(path).st_size
    except FileNotFoundError:
        return None
    return None if size is None else int(size)
