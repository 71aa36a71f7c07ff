"""sftp on a loopback node: the real file system, as this user, relative paths from HOME."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.sftp import SFTP_OK
from paramiko.sftp_attr import SFTPAttributes


def _code(error: OSError) -> int:
    return paramiko.SFTPServer.convert_errno(error.errno or 0)


def _do(action: Callable[[], object]) -> int:
    """Run an action on the file system; the answer is an sftp status code."""
    try:
        action()
    except OSError as error:
        return _code(error)
    return SFTP_OK


class _OpenFile(paramiko.SFTPHandle):
    def __init__(self, file: Any, flags: int) -> None:
        super().__init__(flags)
        self.readfile = self.writefile = file

    def stat(self) -> SFTPAttributes:
        return SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def chattr(self, attr: SFTPAttributes) -> int:
        return _do(lambda: paramiko.SFTPServer.set_file_attr(self.readfile.name, attr))


class HomeFiles(paramiko.SFTPServerInterface):
    """What an sftp client may do; everything this user may."""

    def _path(self, path: str) -> Path:
        return Path.home() / path  # an absolute path stays what it is

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(self._path(path))

    def open(self, path: str, flags: int, attr: SFTPAttributes) -> paramiko.SFTPHandle | int:
        mode = attr.st_mode if attr.st_mode is not None else 0o666
        try:
            fd = os.open(self._path(path), flags | os.O_CLOEXEC, mode)
        except OSError as error:
            return _code(error)
        access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
        kind = {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}.get(access, "r+b")
        file = os.fdopen(fd, kind, buffering=0)
        return _OpenFile(file, flags)

    def list_folder(self, path: str) -> list[SFTPAttributes] | int:
        try:
            with os.scandir(self._path(path)) as entries:
                return [
                    SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name)
                    for entry in entries
                ]
        except OSError as error:
            return _code(error)

    def _stat(self, path: str, follow: bool) -> SFTPAttributes | int:
        try:
            return SFTPAttributes.from_stat(self._path(path).stat(follow_symlinks=follow))
        except OSError as error:
            return _code(error)

    def stat(self, path: str) -> SFTPAttributes | int:
        return self._stat(path, follow=True)

    def lstat(self, path: str) -> SFTPAttributes | int:
        return self._stat(path, follow=False)

    def remove(self, path: str) -> int:
        return _do(lambda: self._path(path).unlink())

    def rename(self, oldpath: str, newpath: str) -> int:
        if os.path.lexists(self._path(newpath)):
            return paramiko.sftp.SFTP_FAILURE  # plain sftp rename never overwrites
        return self.posix_rename(oldpath, newpath)

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        return _do(lambda: self._path(oldpath).replace(self._path(newpath)))

    def mkdir(self, path: str, attr: SFTPAttributes) -> int:
        mode = attr.st_mode if attr.st_mode is not None else 0o777
        return _do(lambda: self._path(path).mkdir(mode))

    def rmdir(self, path: str) -> int:
        return _do(lambda: self._path(path).rmdir())

    def chattr(self, path: str, attr: SFTPAttributes) -> int:
        return _do(lambda: paramiko.SFTPServer.set_file_attr(str(self._path(path)), attr))

    def symlink(self, target_path: str, path: str) -> int:
        return _do(lambda: self._path(path).symlink_to(target_path))

    def readlink(self, path: str) -> str | int:
        try:
            return str(self._path(path).readlink())
        except OSError as error:
            return _code(error)
