"""The process that decodes for `decode.Decoder`: requests on stdin, replies on stdout, no torch."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import math
import mmap
import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.video import helper_process
from trainer.data.video.decode import Window
from trainer.runlog import units
from trainer.runlog.telemetry import CurrentClip

# What NFS, FUSE and network file systems give while their server is away.
_OF_STORAGE = {errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN}
_OF_STORAGE |= {errno.ESHUTDOWN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_OF_STORAGE |= {errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED}


def serve(memory: int, cache_bytes: int, parent: int, memory_bytes: int, resize: str) -> None:
    helper_process.begin(parent, os.environ.get("CLUSTERCTL_ROLE", "decode"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, most))
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # as a rank does, for dump-stacks
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a codec prints must not stand between the replies
    try:
        from trainer.data.video import clip as video
        from trainer.data.video.container import ClipError

        video.scaler(resize)
    except ImportError as error:
        _write(replies, {"error": str(error)})
        return
    _write(replies, {"ready": True})
    cache = ClipCache(cache_bytes)
    shared = _SharedPixels(memory)
    current = CurrentClip.from_environment()
    has_read = False
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if current:
            current.write(request["path"])
        began = time.process_time()
        try:
            answer = _answer_to(request, shared, cache, video)
            has_read = True
        except ClipError as error:
            answer = {"error": str(error) or "cannot be read"}
            has_read = has_read or request.get("has_read", False)
            if storage_fails(error.errno, request["path"], has_read):
                answer["storage_fails"] = True
            if error.errno == errno.ENOENT:
                answer["gone"] = _gone(Path(request["path"]).absolute())
            if error.errno in errno.errorcode and "what" in request:
                answer["again"] = True
            if error.in_window and "window" in request:
                answer["in_window"] = True
        except Exception as error:  # noqa: BLE001 - process boundary: becomes this clip's result
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = round(time.process_time() - began, 6)
        answer["memory_bytes"] = peak_bytes()
        if "error" in answer and answer["memory_bytes"] > memory_bytes / 2:
            # a decoder that gets no memory calls the data invalid
            used = f"{units.size(answer['memory_bytes'])} of {units.size(memory_bytes)}"
            used += " of dataset.worker_memory_mb were in use"
            answer["error"] += f" (or too little memory: {used})"
        if current:
            current.write("")
        _write(replies, answer)


class ClipCache:
    """Decoded clips, the least recently used dropped first, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.used_bytes = limit_bytes, 0
        self._clips: OrderedDict[tuple[Any, ...], tuple[NDArray[Any], Any]] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> tuple[NDArray[Any], Any] | None:
        if key in self._clips:
            self._clips.move_to_end(key)
        return self._clips.get(key)

    def put(self, key: tuple[Any, ...], pixels: NDArray[Any], read: Any) -> None:
        if pixels.nbytes > self.limit_bytes:
            return
        self._clips[key] = (pixels.copy(), read)
        self.used_bytes += pixels.nbytes
        while self.used_bytes > self.limit_bytes:
            _, (dropped, _) = self._clips.popitem(last=False)
            self.used_bytes -= dropped.nbytes


class _SharedPixels:
    """The memory of both processes; mapped again when the other one has enlarged it."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._map: mmap.mmap | None = None

    def view(self, start: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._map is None or len(self._map) < start + count * dtype.itemsize:
            self._map = mmap.mmap(self._memory, os.fstat(self._memory).st_size)
        return np.frombuffer(self._map, dtype, count, start)


def _answer_to(
    request: dict[str, Any], shared: _SharedPixels, cache: ClipCache, video: Any
) -> dict[str, Any]:
    from trainer.data.video.file_identity import identify, identify_all  # it needs PyAV

    path = request["path"]
    if request.get("what") == "identify":
        return {"files": identify_all(request["paths"], request["known"])}
    if "what" in request:
        facts_of = {"probe": video.probe, "check": video.check}[request["what"]]
        return asdict(facts_of(path))
    window = Window(*request["window"])
    shape = (3, window.frames, window.height, window.width)
    pixels = shared.view(request["at"], math.prod(shape), window.dtype).reshape(shape)
    if not cache.limit_bytes:
        file = {"file": identify(path)} if request.get("identify") else {}
        return {**video.read_window(path, window, pixels)._asdict(), **file}
    facts = video.check_regular(path)
    key = (path, facts.st_mtime_ns, facts.st_size, window)
    if (found := cache.get(key)) is None:
        found = pixels, video.read_window(path, window, pixels)
        cache.put(key, *found)
    else:
        pixels[...] = found[0]
    return dict(found[1]._asdict())


def storage_fails(code: int | None, path: str, has_read: bool) -> bool:
    """Whether an error is of the file system or its server, and not of this file. `has_read` says
    whether others could be read before."""
    if code == errno.ENOENT:  # a mount that is gone takes the folder with it; or the path is wrong
        return has_read and not Path(path).absolute().parent.is_dir()
    return code in _OF_STORAGE


def _gone(path: Path) -> str:
    """The folder above a path that is missing, the highest one; "" when only the file is."""
    missing = [str(folder) for folder in path.parents if not folder.is_dir()]
    return missing[-1] if missing else ""


def peak_bytes() -> int:
    """Most memory that was resident at once; getrusage would count the parent's before exec."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
    return 0


def _write(replies: IO[bytes], answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    _memory, _cache, _parent, _limit = map(int, sys.argv[1:5])
    serve(_memory, _cache, _parent, _limit, sys.argv[5])
