"""From a file to the frames of one window at one size, on one thread.

Seek to the window, decode, and let libswscale scale while it converts to RGB; the centre is cropped.
Bytes stay uint8: [-1, 1] is made on the accelerator. libswscale's bilinear kernel widens when it
shrinks (antialiasing), upstream's torch resize does not: another downscale, not the same pixels.

No FFmpeg threads anywhere: a decoder with threads that the garbage collector frees in a forked child
hangs forever (PyAV 18 and 19, every time), and libswscale's default of one thread a core makes a
small frame 10 times dearer (0.071 against 0.007 CPU ms for 64 to 16 pixels, PyAV 18.1).

This file and decode.py run in processes without torch: they import nothing of it.
"""

# C channels · T frames · H,W height, width in pixels

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from trainer.data.decode import Window

_GBR = (1, 2, 0)  # channel of each plane of gbrp; planes need no transposing, unlike rgb24


class ClipError(Exception):
    """This clip cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a manifest says about a file; size after rotation, length by the packet index."""

    num_frames: int
    height: int
    width: int
    fps: float


class _SeekMissed(Exception):
    """The first frame after the seek lies behind the window."""


_reformatter = VideoReformatter()  # keeps its scaling context while sizes stay the same


def read_window(path: str, window: Window, out_CTHW: NDArray[np.uint8]) -> float:
    """Fill `out_CTHW` [3, frames, height, width] with RGB; returns frames a second (0: unknown).

    Raises ClipError for a file that cannot be opened, has no video, has damaged frames in the window
    or fewer frames than expected.
    """
    check_regular(path)
    try:
        try:
            return _read(path, window, out_CTHW, seek=window.start > 0)
        except _SeekMissed:  # its index is wrong; counting from the first frame is always right
            return _read(path, window, out_CTHW, seek=False)
    except (av.FFmpegError, OSError) as error:
        raise ClipError(_why(error)) from None


def probe(path: str) -> ClipFacts:
    """Length, size and rate from container and packet index; decodes the first frame only."""
    check_regular(path)
    try:
        with _open(path) as container:
            stream = _video(container)
            fps = float(stream.average_rate or 0)
            count = _indexed_count(stream)
            first = next(container.decode(stream), None)
            if first is None:
                raise ClipError("no frame")
            height, width = first.height, first.width
            if first.rotation % 180:
                height, width = width, height
            if count is None:
                container.seek(0)
                count = sum(1 for packet in container.demux(stream) if packet.size)
            return ClipFacts(count, height, width, fps)
    except (av.FFmpegError, OSError) as error:
        raise ClipError(_why(error)) from None


def check_regular(path: str) -> os.stat_result:
    """Refuse what is no file: a FIFO would block in open until somebody writes to it, for ever."""
    try:
        facts = Path(path).stat()
    except OSError as error:
        raise ClipError(_why(error)) from None
    if not stat.S_ISREG(facts.st_mode):
        raise ClipError("not a regular file")
    if facts.st_size == 0:
        raise ClipError("empty file")
    return facts


def _why(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).strip()


def _open(path: str) -> Any:
    # metadata is nobody's business here, and odd bytes in a title must not refuse a clip
    return av.open(path, metadata_errors="ignore")


def _video(container: Any) -> Any:
    if not container.streams.video:
        raise ClipError("no video stream")
    stream = container.streams.video[0]
    stream.codec_context.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    return stream


def _indexed_count(stream: Any) -> int | None:
    """Frames by the container's index; None where the container has no complete one (mkv, ts)."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return None
    return int(stream.frames)


def _times(container: Any, stream: Any) -> tuple[NDArray[np.int64], int] | None:
    """Presentation time of each frame in order, and how far a frame's may be off; None: unknown."""
    if _indexed_count(stream) is not None and stream.start_time is not None:
        entries = list(stream.index_entries)
        steps = np.diff(np.array([entry.timestamp for entry in entries], np.int64))
        regular = len(steps) > 0 and (steps == steps[0]).all() and steps[0] > 0
        if regular and not any(entry.is_discard for entry in entries):
            times = stream.start_time + steps[0] * np.arange(len(entries))
            return times, int(steps[0]) // 2
    # Variable rate or no index: the packets are read once, not decoded.
    packets = [
        packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard
    ]
    if not packets or any(pts is None for pts in packets):
        return None  # raw streams carry no times
    return np.sort(np.array(packets, np.int64)), 0


def _read(path: str, window: Window, out_CTHW: NDArray[np.uint8], seek: bool) -> float:
    with _open(path) as container:
        stream = _video(container)
        fps = float(stream.average_rate or 0)
        count = _indexed_count(stream)
        if count is not None and count < window.expected:
            raise ClipError(f"has {count} frames, the manifest says {window.expected}")
        wanted = range(
            window.start, window.start + window.frames * window.interval, window.interval
        )
        times = _times(container, stream) if seek else None
        if seek and times is None:
            raise _SeekMissed
        if times is not None:
            pts, slack = times
            if len(pts) <= wanted[-1]:
                raise ClipError(f"has {len(pts)} frames, the manifest says {window.expected}")
            container.seek(int(pts[window.start]), stream=stream, backward=True)
            frames = _at_times(container.decode(stream), pts[list(wanted)], slack)
        else:
            frames = _at_places(container.decode(stream), wanted)
        found = 0
        for frame in frames:
            if frame.is_corrupt:
                raise ClipError(f"frame {wanted[found]} is damaged")
            _put(frame, window, out_CTHW, found)
            found += 1
        if (
            times is not None and found == 0
        ):  # in a transport stream a seek lands behind the keyframe
            raise _SeekMissed
        if found < window.frames:
            raise ClipError(
                f"ends before frame {wanted[found]}, window {window.start} to {wanted[-1]}"
            )
        return fps


def _at_places(frames: Iterator[Any], wanted: range) -> Iterator[Any]:
    """The frames of these numbers, counted from the first of the file."""
    for index, frame in enumerate(frames):
        if index in wanted:
            yield frame
        if index >= wanted[-1]:
            return


def _at_times(frames: Iterator[Any], wanted: NDArray[np.int64], slack: int) -> Iterator[Any]:
    """The frames of these presentation times, in order."""
    place = 0
    for frame in frames:
        if frame.pts is None or (place == 0 and frame.pts > wanted[0] + slack):
            raise _SeekMissed
        if frame.pts < wanted[place] - slack:
            continue
        if frame.pts > wanted[place] + slack:
            raise ClipError("a frame inside the window is missing")
        yield frame
        place += 1
        if place == len(wanted):
            return


def _put(frame: Any, window: Window, out_CTHW: NDArray[np.uint8], place: int) -> None:
    """Scale to cover the window's size, turn as the container asks, crop the centre."""
    turns = round(frame.rotation / 90) % 4  # rotation is counter-clockwise, so is numpy's
    height, width = window.height, window.width
    if turns % 2:
        height, width = width, height
    grow = max(height / frame.height, width / frame.width)
    tall = max(height, round(frame.height * grow))
    wide = max(width, round(frame.width * grow))
    scaled = _reformatter.reformat(
        frame,
        width=wide,
        height=tall,
        format="gbrp",
        interpolation=window.resize.upper(),
        **_ONE_THREAD,
    )
    top, left = round((tall - height) / 2), round((wide - width) / 2)
    planes: Any = scaled.planes  # each offers its bytes as a buffer
    for plane, channel in zip(planes, _GBR, strict=True):
        pixels = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        pixels = pixels[top : top + height, left : left + width]
        out_CTHW[channel, place] = np.rot90(pixels, turns) if turns else pixels


def _one_thread() -> dict[str, int]:
    """The argument that keeps libswscale on this thread, where PyAV has it (before, one was all)."""
    blank = av.VideoFrame(16, 16, "yuv420p")
    try:
        VideoReformatter().reformat(blank, format="gbrp", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}


_ONE_THREAD = _one_thread()
