"""The sftp of a loopback node, as far as clusterctl uses it; relative paths start from HOME."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.transport.paramiko_import import paramiko

_KINDS = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}


def _code(error: OSError) -> Any:
    return paramiko.SFTPServer.convert_errno(error.errno or 0)


def _status(work: Callable[[], object]) -> Any:
    try:
        work()
    except OSError as error:
        return _code(error)
    return 0  # SFTP_OK


class _Handle(paramiko.SFTPHandle):
    readfile: Any

    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class HomeFiles(paramiko.SFTPServerInterface):
    """Files of this user; what sshd's internal-sftp would do."""

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(Path.home() / path)

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        mode = 0o666 if attr.st_mode is None else attr.st_mode
        # It writes at the offsets that the client sends, also where that appends.
        flags &= ~os.O_APPEND
        try:
            descriptor = os.open(Path.home() / path, flags | os.O_CLOEXEC, mode)
            file = os.fdopen(descriptor, _KINDS[flags & os.O_ACCMODE], buffering=0)
        except OSError as error:
            return _code(error)
        handle: Any = _Handle(flags)
        handle.readfile = handle.writefile = file
        return handle

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat((Path.home() / path).stat())
        except OSError as error:
            return _code(error)

    def list_folder(self, path: str) -> Any:
        found = []
        try:
            for entry in os.scandir(Path.home() / path):
                status = entry.stat(follow_symlinks=False)
                found.append(paramiko.SFTPAttributes.from_stat(status, entry.name))
        except OSError as error:
            return _code(error)
        return found

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> Any:
        mode = 0o777 if attr.st_mode is None else attr.st_mode
        return _status(lambda: (Path.home() / path).mkdir(mode))

    def rmdir(self, path: str) -> Any:
        return _status((Path.home() / path).rmdir)

    def remove(self, path: str) -> Any:
        return _status((Path.home() / path).unlink)

    def posix_rename(self, oldpath: str, newpath: str) -> Any:
        return _status(lambda: (Path.home() / oldpath).replace(Path.home() / newpath))
