"""Files of a loopback node for `clusterctl push`: as this user, relative paths from HOME."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from clusterctl.transport.paramiko_import import paramiko

_error_code = paramiko.SFTPServer.convert_errno
_KINDS = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}


class HomeFiles(paramiko.SFTPServerInterface):
    """What `put` and `get` need; a folder arrives as one archive."""

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(Path.home() / path)  # an absolute path stays as it is

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        mode = 0o666 if attr.st_mode is None else attr.st_mode
        try:
            descriptor = os.open(Path.home() / path, flags | os.O_CLOEXEC, mode)
            file = os.fdopen(descriptor, _KINDS[flags & os.O_ACCMODE], buffering=0)
        except OSError as error:
            return _error_code(error.errno or 0)
        handle: Any = paramiko.SFTPHandle(flags)
        handle.readfile = handle.writefile = file
        return handle

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat((Path.home() / path).stat())
        except OSError as error:
            return _error_code(error.errno or 0)
