"""Frames to an h264 mp4 and back, whole files only, without FFmpeg threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from trainer.runlog.atomic_file import part_of

# T frames · H,W height, width
QUALITY = "12"  # x264's crf: small clips are looked at closely and read back by machine
# Without its lookahead x264 writes the same bytes on every x86-64 processor with SSSE3 and in every
# run. With it, AVX-512 code for the macroblock tree reads memory that nobody wrote (20 encodings of
# 8 frames of 32x32 gave 8 different files), and AVX2 and AVX-512 round its floats differently.
# Cost at crf 12, against lookahead at crf 10 (51 frames of 424x240, 16 of 424x240, 8 of 848x480):
# bytes 1.17x, 1.01x, 0.94x; PSNR +0.10, +0.02, -0.25 dB; CPU time 0.97x, 0.87x, 0.93x.
REPRODUCIBLE = "b-adapt=0:scenecut=0:mbtree=0:rc-lookahead=0:weightp=0"


def write_mp4(
    path: Path,
    frames_THW3: NDArray[np.uint8],
    fps: float,
    upscale: int = 1,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write RGB frames; each pixel becomes `upscale` x `upscale` (nearest). The file appears whole.
    The same frames, fps and tags give the same bytes on every processor. An odd side repeats its
    last row or column, as h264 needs even ones. Of `tags`, mp4 keeps title, artist, comment and the
    like. Raises ValueError for an array that is no video and an fps below 1/1001, and OSError."""
    if frames_THW3.ndim != 4 or frames_THW3.shape[-1] != 3 or not len(frames_THW3):
        raise ValueError(f"frames are [T, H, W, 3], not {list(frames_THW3.shape)}")
    rate = Fraction(fps).limit_denominator(1001) if 0 < fps < math.inf else Fraction(0)
    if not rate or upscale < 1:
        raise ValueError(f"fps {fps} must be at least 1/1001 and upscale {upscale} at least 1")
    frames = frames_THW3.repeat(upscale, 1).repeat(upscale, 2)
    odd_rows, odd_columns = frames.shape[1] % 2, frames.shape[2] % 2
    frames = np.pad(frames, ((0, 0), (0, odd_rows), (0, odd_columns), (0, 0)), mode="edge")
    options = {"crf": QUALITY, "preset": "fast"}
    with part_of(path) as part:
        images = map(np.ascontiguousarray, frames)
        encode(part, images, "rgb24", frames.shape[1:3], rate, options, tags)


def encode(
    path: Path,
    images: Iterable[NDArray[np.uint8]],
    pixels: str,
    size: Sequence[int],
    rate: Fraction,
    options: Mapping[str, str],
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write images of the pixel format `pixels` and `size` (H, W) with these options of x264."""
    with av.open(str(path), "w", format="mp4") as container:
        container.metadata.update(tags or {})
        stream = container.add_stream("libx264", rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        # One thread: FFmpeg's own threads can hang a later fork (PyAV #1962), and clips are small.
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
        stream.options = {**options, "threads": "1", "x264-params": REPRODUCIBLE}
        for index, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format=pixels)
            frame.pts, frame.time_base = index, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def read_mp4(path: Path) -> NDArray[np.uint8]:
    """All frames as RGB, uint8 [T, H, W, 3]. Raises OSError, ValueError for what is no video."""
    if not (frames := list(frames_of(path))):
        raise ValueError(f"{path} has no frame")
    return np.stack(frames)


def frames_of(path: Path) -> Iterator[NDArray[np.uint8]]:
    """The frames one after another, each RGB [H, W, 3]; raises as `read_mp4`."""
    with _opened(path) as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        for frame in container.decode(stream):
            yield frame.to_ndarray(format="rgb24")


def read_tags(path: Path) -> dict[str, str]:
    """The tags of `write_mp4` and the muxer. Raises OSError; ValueError for no whole video."""
    _check_whole(path)
    with _opened(path) as container:
        return dict(container.metadata)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path} has no video stream")
            yield container
    except FileNotFoundError:
        raise
    except av.FFmpegError as error:
        raise ValueError(f"{path} cannot be read as a video: {error}") from None


def _check_whole(path: Path) -> None:
    """The boxes of an mp4 must fill its file: FFmpeg opens one whose index lacks its last bytes."""
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            head = file.read(16)
            length = int.from_bytes(head[:4], "big")
            if length == 1:  # the 64-bit form
                length = int.from_bytes(head[8:16], "big")
            if length < 8 or place + length > size:
                raise ValueError(f"{path} is truncated or not an mp4")
            place += length
    if not size:
        raise ValueError(f"{path} is empty")
