"""From a file to the frames of one window at one size, on one thread.

Seek to the keyframe before the window, decode no frame that neither the window nor a frame of it
needs, and scale while converting to RGB (scale.py). No FFmpeg threads anywhere: a decoder with
threads that the garbage collector frees in a forked child hangs forever (PyAV 18 and 19).

This file and decode.py run in processes without torch, unless upstream's own resize is asked for.
"""

# C channels · T frames · H,W height, width in pixels

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.video.container import (
    ClipError,
    DamagedWindow,
    Index,
    check_regular,
    decodable,
    index_of,
    moving,
    opened,
    refusing,
)
from trainer.data.video.decode import Window
from trainer.data.video.scale import Put, Turn, put

# Its demuxer guesses the time of most frames: two may get the same, and after a seek others.
_GUESSED_TIMES = ("mpeg",)
Times = tuple[NDArray[np.int64], int]
_INDEXED = (".mp4", ".m4v", ".mov")


def scaler(resize: str) -> Put:
    """The function that puts a frame into [3, H, W]; only upstream's loads torch."""
    if resize == "torch":
        from trainer.data.video.upstream_resize import put_as_upstream

        return put_as_upstream
    return put


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a manifest says about a file; size after rotation, length by the packet index."""

    num_frames: int
    height: int
    width: int
    fps: float
    bytes: int
    video_streams: int = 1  # of which the first is read


class Read(NamedTuple):
    """What was seen of a file while a window was read: frames a second, 0 if unknown; height and
    width after rotation."""

    fps: float
    size: tuple[int, ...] = ()


class _Shorter(Exception):
    """The file has fewer frames than the window ends at."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames


class _CannotSeek(Exception):
    """The times are unknown, or the first frame after the seek is behind the window."""


def read_window(path: str, window: Window, out_CTHW: NDArray[Any]) -> Read:
    """Fill `out_CTHW` [3, frames, height, width] with RGB. Raises ClipError for what is no video,
    damaged in the window or shorter than expected."""
    try:
        if window.resize == "torch":
            from trainer.data.video.upstream_resize import STILLS, read_still

            if Path(path).suffix.lower() in STILLS:
                check_regular(path)
                if max(window.frames, window.expected) > 1:
                    raise ClipError(f"has 1 frame, the manifest says {window.expected}")
                with refusing():
                    return Read(0.0, read_still(path, window, out_CTHW[:, 0]))
        try:
            return _read_somehow(path, window, out_CTHW)
        except _Shorter as error:
            return _read_somehow(path, _moved(window, error.frames), out_CTHW)
    except _Shorter as error:
        raise _too_short(window, error.frames) from None
    except MemoryError:
        raise ClipError("needs more memory than dataset.worker_memory_mb allows") from None


def _read_somehow(path: str, window: Window, out_CTHW: NDArray[Any]) -> Read:
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
    with opened(path) as (container, stream):
        index = index_of(stream)
        # One pass: after a seek image2 (.jpg) gives no packet, and raw streams have no seek.
        first, packets = None, 0
        for packet in decodable(container.demux(stream)):
            packets += bool(packet.size and not packet.is_discard)
            if first is None:
                first = next(iter(packet.decode()), None)
            elif index is not None:
                break
        found = packets if index is None else index.shown
        return _facts(path, container, stream, found, first)


def check(path: str) -> ClipFacts:
    """Facts of a file of which every frame is decoded and counted."""
    first, frames = None, 0
    with opened(path) as (container, stream):
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise ClipError(f"frame {frames} is damaged")
            first = first or frame
            frames += 1
        return _facts(path, container, stream, frames, first)


def _facts(path: str, container: Any, stream: Any, frames: int, first: Any) -> ClipFacts:
    if first is None:
        raise ClipError("no frame")
    fps = float(stream.average_rate or 0)
    size, streams = check_regular(path).st_size, len(moving(container))
    return ClipFacts(frames, *_shown_size(first), fps, size, streams)


def _shown_size(frame: Any) -> tuple[int, int]:
    height, width = frame.height, frame.width
    return (width, height) if Turn.of(frame).swaps_sides else (height, width)


def _times(container: Any, stream: Any, index: Index | None, quick: bool) -> Times | None:
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
    packets = decodable(container.demux(stream))
    shown = (packet for packet in packets if packet.size and not packet.is_discard)
    times = [packet.pts for packet in shown]
    if not times or None in times or len({*times}) < len(times):
        return None  # raw streams carry no times, and one time for two frames names neither
    return np.sort(np.array(times, np.int64)), 0


def _read(path: str, window: Window, out_CTHW: NDArray[Any], seek: bool, quick: bool) -> Read:
    put_frame = scaler(window.resize)
    with opened(path, quick) as (container, stream):
        fps = float(stream.average_rate or 0)
        index = index_of(stream)
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
        found, size = 0, ()  # type: int, tuple[int, ...]
        for frame in frames:
            if frame.is_corrupt:
                raise DamagedWindow(f"frame {wanted[found]} is damaged")
            size = size or _shown_size(frame)
            put_frame(frame, window, out_CTHW[:, found])
            found += 1
        if times is not None and found == 0:
            raise _CannotSeek  # in a transport stream a seek lands behind the keyframe
        if found < window.frames and times is None:
            raise _Shorter(counted.count)
        if found < window.frames:
            until = f"window {start} to {wanted[-1]}"
            raise DamagedWindow(f"ends before frame {wanted[found]}, {until}")
        return Read(fps, size)


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
