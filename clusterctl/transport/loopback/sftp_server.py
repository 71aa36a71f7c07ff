"""sftp on a loopback node: the real file system, as this user, relative paths from HOME."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.transport.paramiko_import import paramiko

SFTPAttributes = paramiko.SFTPAttributes


def _try(action: Callable[[], Any]) -> Any:
    """What an action on the file system returns, SFTP_OK for None, or the code of its error."""
    try:
        found = action()
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno or 0)
    return paramiko.sftp.SFTP_OK if found is None else found


class _OpenFile(paramiko.SFTPHandle):
    def __init__(self, file: Any, flags: int) -> None:
        super().__init__(flags)
        self.readfile = self.writefile = file

    def stat(self) -> SFTPAttributes:
        return SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def chattr(self, attr: SFTPAttributes) -> Any:
        return _try(lambda: paramiko.SFTPServer.set_file_attr(self.readfile.name, attr))


class HomeFiles(paramiko.SFTPServerInterface):
    def _path(self, path: str) -> Path:
        return Path.home() / path  # an absolute path stays as it is

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(self._path(path))

    def open(self, path: str, flags: int, attr: SFTPAttributes) -> Any:
        mode = attr.st_mode if attr.st_mode is not None else 0o666
        access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
        kind = {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}.get(access, "r+b")

        def open_file() -> _OpenFile:
            fd = os.open(self._path(path), flags | os.O_CLOEXEC, mode)
            return _OpenFile(os.fdopen(fd, kind, buffering=0), flags)

        return _try(open_file)

    def list_folder(self, path: str) -> Any:
        def attributes() -> list[SFTPAttributes]:
            with os.scandir(self._path(path)) as entries:
                found = [(one.stat(follow_symlinks=False), one.name) for one in entries]
            return [SFTPAttributes.from_stat(status, name) for status, name in found]

        return _try(attributes)

    def stat(self, path: str) -> Any:
        return _try(lambda: SFTPAttributes.from_stat(self._path(path).stat()))

    def lstat(self, path: str) -> Any:
        return _try(lambda: SFTPAttributes.from_stat(self._path(path).lstat()))

    def remove(self, path: str) -> Any:
        return _try(lambda: self._path(path).unlink())

    def rename(self, oldpath: str, newpath: str) -> Any:
        if os.path.lexists(self._path(newpath)):
            return paramiko.sftp.SFTP_FAILURE  # plain sftp rename never overwrites
        return self.posix_rename(oldpath, newpath)

    def posix_rename(self, oldpath: str, newpath: str) -> Any:
        return _try(lambda: os.replace(self._path(oldpath), self._path(newpath)))  # noqa: PTH105

    def mkdir(self, path: str, attr: SFTPAttributes) -> Any:
        mode = attr.st_mode if attr.st_mode is not None else 0o777
        return _try(lambda: self._path(path).mkdir(mode))

    def rmdir(self, path: str) -> Any:
        return _try(lambda: self._path(path).rmdir())

    def chattr(self, path: str, attr: SFTPAttributes) -> Any:
        return _try(lambda: paramiko.SFTPServer.set_file_attr(str(self._path(path)), attr))

    def symlink(self, target_path: str, path: str) -> Any:
        return _try(lambda: self._path(path).symlink_to(target_path))

    def readlink(self, path: str) -> Any:
        return _try(lambda: str(self._path(path).readlink()))
