"""A file as FFmpeg opens it: what is refused, its video stream, and what its container says of its
frames without being read. On one thread: a decoder with threads that the garbage collector frees in
a forked child hangs forever (PyAV 18 and 19).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.stream import Disposition
from numpy.typing import NDArray

# libavformat looks in the streams' first frames for what an mp4's header says already: 15 of the
# 17 CPU ms that opening a 720p clip takes. With these options it looks at nothing.
_UNPROBED = {"skip_frame": "all", "probesize": "32"}
# x%d.jpg is that file, not x1.jpg, x2.jpg, … Not for every name: PyAV 17.0.0 dies of it at .flv.
_ONE_FILE = {"pattern_type": "none"}
# Of local files only: FFmpeg refuses the others itself.
_LISTS = ("hls", "concat", "dash", "imf", "sdp")
_PYAV = int(av.__version__.split(".")[0])
if _PYAV < 17:  # a stream has no index_entries there
    raise ImportError(f"PyAV {av.__version__} is too old to read clips: 17 or newer is needed")
# Nobody reads titles here, so bytes that are not UTF-8 must not refuse a clip. PyAV 19 decodes
# them leniently by itself and no longer takes the argument.
_ANY_TITLE: Any = {"metadata_errors": "ignore"} if _PYAV < 19 else {}


class ClipError(Exception):
    """This clip cannot be used; the text says why."""

    errno: int | None = None  # of the file system
    in_window = False  # another window of the clip may be good


class DamagedWindow(ClipError):
    """Frames of this window cannot be used; the text names the first of them."""

    in_window = True


def check_regular(path: str) -> os.stat_result:
    """Refuse what is not a file: open on a FIFO blocks until somebody writes to it."""
    with refusing():
        facts = Path(path).stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ClipError("not a regular file")
    if facts.st_size == 0:
        raise ClipError("empty file")
    return facts


@contextmanager
def refusing(kind: type[ClipError] = ClipError) -> Iterator[None]:
    """Errors of FFmpeg and of the file system become ClipError."""
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        refused = kind(str(why).strip())
        refused.errno = error.errno
        raise refused from None


@contextmanager
def opened(path: str, quick: bool = False) -> Iterator[tuple[Any, Any]]:
    """Container and video stream, on one thread; `quick` reads the header only. Raises ClipError,
    also for an error of FFmpeg inside the block."""
    check_regular(path)
    options = (_ONE_FILE if "%" in path else {}) | (_UNPROBED if quick else {})
    # Absolute: FFmpeg takes what stands before a colon for a protocol (http:, concat:).
    name = str(Path(path).absolute())
    with refusing(), av.open(name, options=options, **_ANY_TITLE) as container:
        if container.format.name in _LISTS:
            raise ClipError("a playlist of other files, not a clip")
        if not container.streams.video:
            raise ClipError("no video stream")
        if len(container.streams.video) > 1 and is_tiled(path):
            raise ClipError("a picture in tiles, of which only one would be read: save it as one")
        stream = moving(container)[0]
        stream.codec_context.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        with refusing(DamagedWindow):
            yield container, stream


def moving(container: Any) -> list[Any]:
    """The video streams of a file; a cover is one only where there is nothing else."""
    streams = list(container.streams.video)
    return [one for one in streams if not one.disposition & Disposition.attached_pic] or streams


def is_tiled(path: str) -> bool:
    """Whether a picture (AVIF, HEIC) is put together of others: FFmpeg gives each as a stream, and
    PyAV not the order in which they stand."""
    facts = check_regular(path)
    with Path(path).open("rb") as file:
        while len(head := file.read(8)) == 8:  # the boxes of ISO/IEC 14496-12
            size, kind, own = int.from_bytes(head[:4], "big"), head[4:], len(head)
            if size == 1:  # it needs 64 bits
                size, own = int.from_bytes(file.read(8), "big"), own + 8
            if size == 0:  # up to the end of the file
                size = facts.st_size
            if kind == b"meta":
                content = file.read(max(0, min(size - own, 1 << 20)))
                return b"grid" in content or b"iovl" in content
            if size < own:
                break
            file.seek(size - own, os.SEEK_CUR)
    return False


class Index(NamedTuple):
    """What a container says about its frames without being read."""

    times: NDArray[np.int64]  # in the order of decoding
    shown: int  # frames; `ffmpeg -ss -c copy` keeps some before the cut, hidden by an edit list


def index_of(stream: Any) -> Index | None:
    """None where the container has no complete index (mkv, ts)."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return None
    pairs = np.array([(entry.timestamp, entry.is_discard) for entry in entries], np.int64)
    return Index(pairs[:, 0], len(pairs) - int(pairs[:, 1].sum()))


def decodable(packets: Iterator[Any]) -> Iterator[Any]:
    """Without what stands before the first keyframe, where there is one: a recording that begins
    between two has frames that no decoder gives."""
    held: list[Any] = []
    for packet in packets:
        if packet.is_keyframe or not packet.size:
            yield from [packet] if packet.is_keyframe else [*held, packet]
            yield from packets
            return
        held.append(packet)
    yield from held
