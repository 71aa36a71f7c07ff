"""From a file to the frames of one window at one size, on one thread.

Seek to the keyframe before the window, decode no frame that neither the window nor a frame of it
needs, and scale while converting to RGB (scale.py). No FFmpeg threads anywhere: a decoder with
threads that the garbage collector frees in a forked child hangs forever (PyAV 18 and 19).

This file and decode.py run in processes without torch, unless upstream's own resize is asked for.
"""

# C channels · T frames · H,W height, width in pixels

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from trainer.data.video.decode import Window
from trainer.data.video.scale import Put, Turn, put

# libavformat looks in the streams' first frames for what an mp4's header says already: 15 of the
# 17 CPU ms that opening a 720p clip takes. With these options it looks at nothing.
_UNPROBED = {"skip_frame": "all", "probesize": "32"}
# x%d.jpg is that file, not x1.jpg, x2.jpg, … Not for every name: PyAV 17.0.0 dies of it at .flv.
_ONE_FILE = {"pattern_type": "none"}
# Its demuxer guesses the time of most frames: two may get the same, and after a seek others.
_GUESSED_TIMES = ("mpeg",)
# Of local files only: FFmpeg refuses the others itself.
_LISTS = ("hls", "concat", "dash", "imf", "sdp")
Times = tuple[NDArray[np.int64], int]
_INDEXED = (".mp4", ".m4v", ".mov")
_PYAV = int(av.__version__.split(".")[0])
if _PYAV < 17:  # a stream has no index_entries there
    raise ImportError(f"PyAV {av.__version__} is too old to read clips: 17 or newer is needed")
# Nobody reads titles here, so bytes that are not UTF-8 must not refuse a clip. PyAV 19 decodes
# them leniently by itself and no longer takes the argument.
_ANY_TITLE: Any = {"metadata_errors": "ignore"} if _PYAV < 19 else {}


def scaler(resize: str) -> Put:
    """The function that puts a frame into [3, H, W]; only upstream's loads torch."""
    if resize == "torch":
        from trainer.data.video.upstream_resize import put_as_upstream

        return put_as_upstream
    return put


class ClipError(Exception):
    """This clip cannot be used; the text says why."""

    errno: int | None = None  # of the file system
    in_window = False  # another window of the clip may be good


class DamagedWindow(ClipError):
    """Frames of this window cannot be used; the text names the first of them."""

    in_window = True


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a manifest says about a file; size after rotation, length by the packet index."""

    num_frames: int
    height: int
    width: int
    fps: float
    bytes: int


class _Shorter(Exception):
    """The file has fewer frames than the window ends at."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames


class _CannotSeek(Exception):
    """The times are unknown, or the first frame after the seek is behind the window."""


def read_window(path: str, window: Window, out_CTHW: NDArray[Any]) -> float:
    """Fill `out_CTHW` [3, frames, height, width] with RGB; return frames a second, 0 if unknown.
    Raises ClipError for what is no video, damaged in the window or shorter than expected."""
    try:
        if window.resize == "torch":
            from trainer.data.video.upstream_resize import STILLS, read_still

            if Path(path).suffix.lower() in STILLS:
                check_regular(path)
                if max(window.frames, window.expected) > 1:
                    raise ClipError(f"has 1 frame, the manifest says {window.expected}")
                with _refusing():
                    read_still(path, window, out_CTHW[:, 0])
                return 0.0
        try:
            return _read_somehow(path, window, out_CTHW)
        except _Shorter as error:
            return _read_somehow(path, _moved(window, error.frames), out_CTHW)
    except _Shorter as error:
        raise _too_short(window, error.frames) from None
    except MemoryError:
        raise ClipError("needs more memory than dataset.worker_memory_mb allows") from None


def _read_somehow(path: str, window: Window, out_CTHW: NDArray[Any]) -> float:
    if path.lower().endswith(_INDEXED):
        try:
            return _read(path, window, out_CTHW, seek=True, quick=True)
        except (_CannotSeek, ClipError):
            pass  # the careful way below reports what is wrong
    try:
        return _read(path, window, out_CTHW, seek=window.start > 0, quick=False)
    except _CannotSeek:  # its index is wrong; counting from the first frame is always right
        return _read(path, window, out_CTHW, seek=False, quick=False)


def _moved(window: Window, frames: int) -> Window:
    """A window for a file with fewer frames than the manifest says: at a start of upstream's choice
    for as many. Tools that count frames by the container's header count those that an edit list
    hides. Raises ClipError where no start fits."""
    span = window._replace(start=0).places[-1] + 1
    if window.is_fixed or not span <= frames < window.expected:
        raise _too_short(window, frames)
    choices = max(1, frames - window.frames * window.interval)
    return window._replace(start=window.start % choices, expected=frames)


def _too_short(window: Window, frames: int) -> ClipError:
    return ClipError(f"has {frames} frames, the manifest says {window.expected}")


def probe(path: str) -> ClipFacts:
    """Length, size and rate from container and packet index; decodes the first frame only."""
    with _opened(path) as (container, stream):
        index = _index(stream)
        # One pass: after a seek image2 (.jpg) gives no packet, and raw streams have no seek.
        first, packets = None, 0
        for packet in _decodable(container.demux(stream)):
            packets += bool(packet.size and not packet.is_discard)
            if first is None:
                first = next(iter(packet.decode()), None)
            elif index is not None:
                break
        return _facts(path, stream, packets if index is None else index.shown, first)


def check(path: str) -> ClipFacts:
    """Facts of a file of which every frame is decoded and counted."""
    first, frames = None, 0
    with _opened(path) as (container, stream):
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise ClipError(f"frame {frames} is damaged")
            first = first or frame
            frames += 1
        return _facts(path, stream, frames, first)


def _facts(path: str, stream: Any, frames: int, first: Any) -> ClipFacts:
    if first is None:
        raise ClipError("no frame")
    height, width = first.height, first.width
    if Turn.of(first).swaps_sides:
        height, width = width, height
    fps = float(stream.average_rate or 0)
    return ClipFacts(frames, height, width, fps, check_regular(path).st_size)


def check_regular(path: str) -> os.stat_result:
    """Refuse what is not a file: open on a FIFO blocks until somebody writes to it."""
    with _refusing():
        facts = Path(path).stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ClipError("not a regular file")
    if facts.st_size == 0:
        raise ClipError("empty file")
    return facts


@contextmanager
def _refusing(kind: type[ClipError] = ClipError) -> Iterator[None]:
    """Errors of FFmpeg and of the file system become ClipError."""
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        refused = kind(str(why).strip())
        refused.errno = error.errno
        raise refused from None


@contextmanager
def _opened(path: str, quick: bool = False) -> Iterator[tuple[Any, Any]]:
    """Container and video stream, on one thread; `quick` reads the header only. Raises ClipError,
    also for an error of FFmpeg inside the block."""
    check_regular(path)
    options = (_ONE_FILE if "%" in path else {}) | (_UNPROBED if quick else {})
    # Absolute: FFmpeg takes what stands before a colon for a protocol (http:, concat:).
    name = str(Path(path).absolute())
    with _refusing(), av.open(name, options=options, **_ANY_TITLE) as container:
        if container.format.name in _LISTS:
            raise ClipError("a playlist of other files, not a clip")
        if not container.streams.video:
            raise ClipError("no video stream")
        if len(container.streams.video) > 1 and _is_tiled(path):
            raise ClipError("a picture in tiles, of which only one would be read: save it as one")
        stream = container.streams.video[0]
        stream.codec_context.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        with _refusing(DamagedWindow):
            yield container, stream


def _is_tiled(path: str) -> bool:
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


class _Index(NamedTuple):
    """What a container says about its frames without being read."""

    times: NDArray[np.int64]  # in the order of decoding
    shown: int  # frames; `ffmpeg -ss -c copy` keeps some before the cut, hidden by an edit list


def _index(stream: Any) -> _Index | None:
    """None where the container has no complete index (mkv, ts)."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return None
    pairs = np.array([(entry.timestamp, entry.is_discard) for entry in entries], np.int64)
    return _Index(pairs[:, 0], len(pairs) - int(pairs[:, 1].sum()))


def _decodable(packets: Iterator[Any]) -> Iterator[Any]:
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


def _times(container: Any, stream: Any, index: _Index | None, quick: bool) -> Times | None:
    """Presentation time of each frame in order, and how far a frame's may be off; None: unknown."""
    # avi's index has the times of decoding, and its start is theirs: h264 is shown one frame later.
    own = index if container.format.name != "avi" else None
    if own is not None and stream.start_time is not None and own.shown == len(own.times):
        steps = np.diff(own.times)
        if len(steps) and steps[0] > 0 and (steps == steps[0]).all():
            return stream.start_time + steps[0] * np.arange(own.shown), int(steps[0]) // 2
    if quick or container.format.name in _GUESSED_TIMES:
        return None
    # Variable rate or no index: the packets are read once, not decoded.
    packets = _decodable(container.demux(stream))
    shown = (packet for packet in packets if packet.size and not packet.is_discard)
    times = [packet.pts for packet in shown]
    if not times or None in times or len({*times}) < len(times):
        return None  # raw streams carry no times, and one time for two frames names neither
    return np.sort(np.array(times, np.int64)), 0


def _read(path: str, window: Window, out_CTHW: NDArray[Any], seek: bool, quick: bool) -> float:
    put_frame = scaler(window.resize)
    with _opened(path, quick) as (container, stream):
        fps = float(stream.average_rate or 0)
        index = _index(stream)
        start, wanted = window.start, window.places
        if index is not None and index.shown <= wanted[-1]:
            raise _Shorter(index.shown)
        times = None
        if seek:
            times = _times(container, stream, index, quick)
            if times is None or (quick and not fps):
                raise _CannotSeek
            pts, slack = times
            if len(pts) <= wanted[-1]:
                raise _Shorter(len(pts))
            if start or not quick:
                container.seek(int(pts[start]), stream=stream, backward=True)
            frames = _at_times(container, stream, pts[wanted], slack)
        else:
            counted = _Counted(container.decode(stream))
            decoded = itertools.islice(counted, wanted[-1] + 1)
            places = set(wanted)
            frames = (frame for place, frame in enumerate(decoded) if place in places)
        found = 0
        for frame in frames:
            if frame.is_corrupt:
                raise DamagedWindow(f"frame {wanted[found]} is damaged")
            put_frame(frame, window, out_CTHW[:, found])
            found += 1
        if times is not None and found == 0:
            raise _CannotSeek  # in a transport stream a seek lands behind the keyframe
        if found < window.frames and times is None:
            raise _Shorter(counted.count)
        if found < window.frames:
            until = f"window {start} to {wanted[-1]}"
            raise DamagedWindow(f"ends before frame {wanted[found]}, {until}")
        return fps


class _Counted:
    """An iterator that knows how many it has given."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self.count = items, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        self.count += 1
        return item


def _at_times(container: Any, stream: Any, wanted: NDArray[np.int64], slack: int) -> Iterator[Any]:
    """The frames of these presentation times, in order."""
    place = 0
    for frame in _decoded(container, stream, wanted, slack):
        if frame.pts is None or (place == 0 and frame.pts > wanted[0] + slack):
            raise _CannotSeek
        if frame.pts < wanted[place] - slack:
            continue
        if frame.pts > wanted[place] + slack:
            raise DamagedWindow("a frame inside the window is missing")
        yield frame
        place += 1
        if place == len(wanted):
            return


def _decoded(container: Any, stream: Any, wanted: NDArray[np.int64], slack: int) -> Iterator[Any]:
    """Frames in order; of h264 only those that are wanted or that others refer to. h264 marks each
    frame that no other refers to (nal_ref_idc 0), half of x264's: a window 10 s behind its keyframe
    costs a third less. HEVC's mark means something else, other decoders have none."""
    context = stream.codec_context
    context.skip_frame = "DEFAULT"  # opening may have left it at "all"
    if context.name != "h264":
        yield from container.decode(stream)
        return
    near = np.concatenate([wanted - slack, wanted + slack])
    for packet in container.demux(stream):
        pts = packet.pts
        if pts is not None and packet.size:
            place = int(np.searchsorted(near[: len(wanted)], pts, "right")) - 1
            is_wanted = place >= 0 and pts <= near[len(wanted) + place]
            context.skip_frame = "DEFAULT" if is_wanted else "NONREF"
        yield from packet.decode()
