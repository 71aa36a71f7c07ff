"""Decoding with a deadline: a process of its own for PyAV, and the handle that its user holds.

An FFmpeg call cannot be interrupted from Python, and a dead network mount blocks it. So each worker
has one helper process (decode_process.py, without torch) that reads one clip at a time. One
that misses the deadline, or dies twice with the same clip, is replaced, and only that clip is
refused. Requests and replies are JSON lines over two pipes; pixels go through a shared memory file
of a few clips.

What sleeps in a file system that never answers (FUSE) cannot be killed: such helpers are left
behind, and when there are many the decoder gives up with a sentence about the file system.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.video import helper_process
from trainer.errors import TrainerError
from trainer.runlog import units
from trainer.runlog.own_modules import environment, module_command

_HELPER = "trainer.data.video.decode_process"
_AHEAD = 4  # requests on their way: hides the turn-round, and always fits a pipe of 64 KiB
_LONGEST_PATH = 4096  # bytes; Linux's own limit
_PAGE = 1 << 20
IMAGE_FPS = 120.0  # what the model is told for a still, as upstream has it
START_TIMEOUT_S = 120.0  # importing PyAV from a cold, loaded network drive
MEMORY_BYTES = 2 << 30  # 8K video with 16 reference frames takes 0.8 GB
_ENDS_S = 2.0  # after SIGKILL; what still lives then sleeps in the kernel and is left behind
_LEFT_BEHIND = 16  # helpers at once: each keeps its memory until its file system answers


class DecoderBroken(TrainerError):
    """Clips cannot be read at all (not one clip's fault); the text says why."""


class Window(NamedTuple):
    """`frames` of a file of `expected` frames from `start` on, and their size."""

    start: int
    frames: int
    interval: int
    height: int
    width: int
    expected: int
    resize: str = "bilinear"  # "area": mean of what a pixel covers; "torch": upstream's, float32
    # With an interval above 1: every n-th frame, or upstream's, evenly from the first to the last
    # of frames x interval ones. Of 51 at 3 half are others, by up to two places.
    is_spread: bool = False
    is_fixed: bool = False  # where a file has fewer frames than expected the start stays

    @property
    def places(self) -> list[int]:
        """The frames of the file, counted from 0, rising."""
        end = self.start + self.frames * self.interval
        if self.is_spread:
            return np.linspace(self.start, end - 1, self.frames, dtype=int).tolist()
        return list(range(self.start, end, self.interval))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its pixels: uint8 in 0..255, or with "torch" float32 in -1..1."""
        return np.dtype(np.float32 if self.resize == "torch" else np.uint8)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one clip; `error` empty means its pixels are there."""

    error: str = ""
    fps: float = 0.0
    size: Sequence[int] = ()  # height and width of the file as shown, where they are known
    cpu_s: float = 0.0  # in the helper
    memory_bytes: int = 0  # the helper's peak resident memory so far
    storage_fails: bool = False  # the error is of the file system, not of this clip
    file: Sequence[int] = ()  # which one it was, where that is asked for: file_identity.py
    gone: str = ""  # the folder that is missing, where that is the error
    in_window: bool = False  # other windows of the clip may be good


@dataclass(eq=False)
class Decoder:
    """One helper process, started when first needed. Not for use by two threads at once."""

    clip_timeout_s: float = 30.0
    cache_bytes: int = 0  # of decoded clips that the helper keeps
    role: str = "decode"  # its name in `ps`
    memory_bytes: int = MEMORY_BYTES  # beside the cache; a clip that needs more is refused
    resize: str = "bilinear"  # what it needs is loaded before the first clip's time begins

    def __post_init__(self) -> None:
        self.replaced = 0  # helpers killed or found dead
        self.has_read = False  # some clip: a folder that is missing was there, perhaps
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._memory = os.memfd_create("clips", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None
        self.process: Any = None  # a Popen
        self._owner, self._aborted = os.getpid(), False

    def decode(
        self,
        clips: Sequence[tuple[str, Window]],
        shape_CTHW: tuple[int, int, int, int],
        deadline: float = math.inf,
        out: NDArray[Any] | Sequence[NDArray[Any]] | None = None,
        identify: bool = False,
    ) -> tuple[Any, list[Reply]]:
        """Pixels [N, C, T, H, W] and a reply for each (path, Window), in order. `out` says where
        each clip's pixels go. With `identify` replies say which file it was. The pixels of a clip
        with an error are undefined. Clips not done by `deadline` (time.monotonic) have errors.
        Raises DecoderBroken when no helper runs, when too many hang in a dead file system, or after
        `abort`."""
        dtype = clips[0][1].dtype if clips else np.dtype(np.uint8)
        clip_bytes = math.prod(shape_CTHW) * dtype.itemsize
        shared = self._shared(_AHEAD * clip_bytes)
        if out is None:
            out = np.empty((len(clips), *shape_CTHW), dtype)
        replies = [Reply("no time left")] * len(clips)
        todo = deque(range(len(clips)))
        sent: deque[int] = deque()
        once_more: set[int] = set()  # clips with which a helper has died
        turn = idle_deaths = 0  # a request's slot is its turn's: at most _AHEAD are on their way
        while todo or sent:
            self.start()
            if time.monotonic() > deadline:
                self.close()  # its requests are not needed any more
                break
            try:
                while todo and len(sent) < _AHEAD:
                    path, window = clips[todo[0]]
                    if len(os.fsencode(path)) > _LONGEST_PATH:
                        replies[todo.popleft()] = Reply("path too long")
                        continue
                    at = (turn + len(sent)) % _AHEAD * clip_bytes
                    own = {"window": window, "at": at, "has_read": self.has_read}
                    own |= {"identify": True} if identify else {}
                    self._send({"path": path, **own})
                    sent.append(todo.popleft())
                if not sent:
                    continue
                reply = Reply(**self._receive(time.monotonic() + self.clip_timeout_s))
            except _NoAnswer as error:
                # Only the clip at the head was being worked on; the others are asked for again. It
                # too, once, where the helper has died: somebody else may have killed it.
                if sent and isinstance(error, _Died) and sent[0] not in once_more:
                    once_more.add(sent[0])
                elif sent:
                    replies[sent.popleft()] = Reply(str(error))
                else:  # it died before it saw a clip: no clip's fault, so not again and again
                    idle_deaths += 1
                    if idle_deaths > 2:
                        raise DecoderBroken(str(error)) from None
                todo.extendleft(reversed(sent))
                sent.clear()
                self.close()
                self.replaced += 1
            else:
                place = sent.popleft()
                replies[place] = reply
                if not reply.error:
                    self.has_read = True
                    at = turn % _AHEAD * clip_bytes
                    pixels = np.frombuffer(shared, dtype, math.prod(shape_CTHW), at)
                    out[place][...] = pixels.reshape(shape_CTHW)
                turn += 1
        return out, replies

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """ClipFacts of {"what": "probe" or "check", "path": …}, or {"error": why}, with "again"
        where the file system may answer otherwise another time. Raises DecoderBroken."""
        if self.process is not None and self.process.poll() is not None:
            self.close()  # it died while it had no question: no clip's fault
        has_died = False
        while True:
            self.start()
            try:
                self._send({**question, "has_read": self.has_read})
                answer = self._receive(time.monotonic() + self.clip_timeout_s)
                self.has_read |= "error" not in answer
                return answer
            except _NoAnswer as error:
                self.close()
                self.replaced += 1
                if has_died or not isinstance(error, _Died):
                    return {"error": str(error), "again": True}
                has_died = True  # somebody else may have killed it: it is asked once more

    def close(self) -> None:
        """End the helper. The decoder may be used again afterwards."""
        process, self.process = self.process, None
        if process is None or os.getpid() != self._owner:  # a fork must not end its parent's helper
            return
        process.kill()  # it has nothing to save, and may not be able to answer
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._left_behind.append(process)

    def abort(self) -> None:
        """From another thread: end what is under way; from now on DecoderBroken is raised."""
        self._aborted = True
        if (process := self.process) is not None:
            process.kill()

    def __del__(self) -> None:
        try:
            self.close()
            os.close(self._memory)
        except (OSError, AttributeError):
            pass  # interpreter shutdown

    def _shared(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            size = -(-size // _PAGE) * _PAGE
            os.ftruncate(self._memory, size)
            self._map = mmap.mmap(self._memory, size)  # an older one lives while arrays use it
        return self._map

    def start(self) -> None:
        """Start the helper if none runs. Raises DecoderBroken when it cannot, or after `abort`."""
        if self._aborted:
            raise DecoderBroken("decoding was ended")
        if self.process is not None:
            return
        self._left_behind = [process for process in self._left_behind if process.poll() is None]
        if len(self._left_behind) >= _LEFT_BEHIND:
            raise DecoderBroken(
                f"{len(self._left_behind)} decoding processes were killed and cannot end: "
                "they wait for a file system that does not answer",
                hint="check the mounts of the clips; a run names late ones in bad_samples.jsonl",
            )
        limit = self.memory_bytes + self.cache_bytes
        numbers = (self._memory, self.cache_bytes, os.getpid(), limit)
        with helper_process.signals_held():
            self.process = subprocess.Popen(
                module_command(_HELPER, *numbers, self.resize),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._memory],
                env=environment(OMP_NUM_THREADS="1", CLUSTERCTL_ROLE=self.role),
                bufsize=0,
            )
        self._lines = b""
        try:
            error = self._receive(time.monotonic() + START_TIMEOUT_S).get("error")
        except _NoAnswer as failure:
            error = str(failure)
        if error is not None:
            self.close()
            raise DecoderBroken(
                f"the decoding process does not start: {error}",
                hint="it needs PyAV, see docs/guide/install.md",
            )

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            raise _dead(self.process) from None

    def _receive(self, deadline: float) -> dict[str, Any]:
        fd = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while b"\n" not in self._lines:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _NoAnswer(f"no answer within {units.duration(self.clip_timeout_s)}")
            if not (data := os.read(fd, 1 << 16)):
                raise _dead(self.process)
            self._lines += data
        line, self._lines = self._lines.split(b"\n", 1)
        return json.loads(line)


class _NoAnswer(Exception):
    """The helper is late or has died."""


class _Died(_NoAnswer):
    """It has ended with a request on its way."""


def _dead(process: subprocess.Popen[bytes]) -> _Died:
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:  # it closed its pipe but lives on; it is killed next
        code = None
    ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return _Died(f"the decoding process died: {ending}")
