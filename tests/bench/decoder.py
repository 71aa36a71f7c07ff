"""CPU time of reading a window of a clip: ours, pure decoding, and the ways of Open-Sora, in one run.

python -m tests.bench.decoder [--bucket 360 640] [--frames 51] [--windows 6]

Every way reads the same random windows of the same synthetic 720p clips of 10 s at 24 frames a second
(h264, a keyframe every 12 and every 250 frames), on one thread; a figure is the mean over the windows
of the least CPU time of `--repeats` runs (2 of the slow ways), in turns. Peak memory is that of a
process which does nothing else.

Decoding all is what Lambda's fork of Open-Sora 1.2 does: every frame decoded, those of the window to
full-size RGB, then float32, torch's bilinear resize without antialiasing, crop, [-1, 1]. Open-Sora 1.2
itself makes RGB of all 240. Ours scales inside libswscale, whose kernel widens when it shrinks: another
downscale, not the same pixels. `resize="torch"` gives upstream's bits, and shows what the reader alone is.
Pure decoding is PyAV's plain way to the needed frames: open, seek, decode to the window's last frame.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import tiny

RATE = 24
GAPS = (12, 250)  # frames from one keyframe to the next
WAYS = ("open-sora", "lambda", "pure decoding", "ours", "ours, area", "ours, torch")
SLOW = WAYS[:2]


def pictures(length: int, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """A textured background that pans, with noise: compresses about as film does."""
    random_ = np.random.default_rng(0)
    height, width = size
    rough = random_.integers(0, 255, (height // 8 + 40, width // 8 + 200, 3), dtype=np.uint8)
    ground = rough.repeat(8, 0).repeat(8, 1).astype(np.float32)
    for axis in (0, 1):
        sums = np.cumsum(ground, axis=axis)
        ground = (np.roll(sums, -9, axis) - sums) / 9
    ground = np.clip(ground, 0, 255)
    noise = [random_.normal(0, 3, (height, width, 1)).astype(np.float32) for _ in range(4)]
    for index in range(length):
        x, y = 2 * index % 800, int(40 + 30 * np.sin(index / 20))
        part = ground[y : y + height, x : x + width] + noise[index % 4]
        yield np.clip(part, 0, 255).astype(np.uint8)


def write_clips(folder: Path, length: int, size: tuple[int, int]) -> None:
    import av

    folder.mkdir(exist_ok=True)
    with_gap = {}
    for gap in GAPS:
        container = av.open(str(folder / f"{gap}.mp4"), "w")
        stream = container.add_stream("libx264", rate=RATE)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.thread_count = 1
        options = {"preset": "veryfast", "crf": "23", "sc_threshold": "0"}
        stream.options = {**options, "g": str(gap), "keyint_min": str(gap)}
        with_gap[gap] = (container, stream)
    for picture in pictures(length, size):
        frame = av.VideoFrame.from_ndarray(picture, "rgb24")
        for container, stream in with_gap.values():
            container.mux(stream.encode(frame))
    for container, stream in with_gap.values():
        container.mux(stream.encode(None))
        container.close()


def _one_thread(container: Any) -> Any:
    stream = container.streams.video[0]
    stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
    return stream


def _resized(clip_THWC: np.ndarray, bucket: tuple[int, int]) -> Any:
    """As upstream's transforms do it."""
    import torch

    clip = torch.from_numpy(clip_THWC).permute(0, 3, 1, 2).float() / 255.0
    shape = clip.shape[-2:]
    scale = max(bucket[0] / shape[0], bucket[1] / shape[1])
    size = [max(b, round(n * scale)) for b, n in zip(bucket, shape, strict=True)]
    clip = torch.nn.functional.interpolate(clip, size=size, mode="bilinear", align_corners=False)
    top, left = (size[0] - bucket[0]) // 2, (size[1] - bucket[1]) // 2
    return clip[..., top : top + bucket[0], left : left + bucket[1]].sub(0.5).div(0.5)


def decode_all(path: str, start: int, frames: int, bucket: tuple[int, int], rgb_all: bool) -> None:
    import av

    with av.open(path) as container:
        stream = _one_thread(container)
        count = stream.frames if rgb_all else frames
        clip = np.zeros((count, stream.height, stream.width, 3), np.uint8)
        for index, frame in enumerate(container.decode(stream)):
            if rgb_all:
                clip[index] = frame.to_ndarray(format="rgb24")
            elif start <= index < start + frames:
                clip[index - start] = frame.to_ndarray(format="rgb24")
    _resized(clip[start : start + frames] if rgb_all else clip, bucket)


def decode_only(path: str, start: int, frames: int) -> None:
    import av

    with av.open(path) as container:
        stream = _one_thread(container)
        step = 1 / stream.average_rate / stream.time_base
        begin = round(start * step) + stream.start_time
        container.seek(begin, stream=stream)
        found = 0
        for frame in container.decode(stream):
            found += frame.pts > begin - step / 2
            if found == frames:
                return


def reader(way: str, args: argparse.Namespace) -> Callable[[str, int], None]:
    frames, bucket = args.frames, tuple(args.bucket)
    if way in ("open-sora", "lambda"):
        import torch

        torch.set_num_threads(1)
        return lambda path, start: decode_all(path, start, frames, bucket, way == "open-sora")
    if way == "pure decoding":
        return lambda path, start: decode_only(path, start, frames)
    from trainer.data.video.clip import read_window
    from trainer.data.video.decode import Window

    resize = way.partition(", ")[2] or "bilinear"
    kind = np.float32 if resize == "torch" else np.uint8
    out = np.zeros((3, frames, *bucket), kind)

    def read(path: str, start: int) -> None:
        read_window(path, Window(start, frames, 1, *bucket, args.length, resize), out)

    return read


def times(args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Mean over the windows of each way's least CPU seconds; ways take turns, so load hits all alike."""
    draw = random.Random(1)
    starts = [draw.randint(0, args.length - args.frames) for _ in range(args.windows)]
    found: dict[int, dict[str, float]] = {}
    readers = {way: reader(way, args) for way in WAYS}
    for gap in GAPS:
        path = str(args.folder / f"{gap}.mp4")
        least = {way: [float("inf")] * len(starts) for way in WAYS}
        for turn in range(args.repeats):
            for way in WAYS:
                if way in SLOW and turn >= 2:
                    continue
                for place, start in enumerate(starts):
                    began = time.process_time()
                    readers[way](path, start)
                    spent = time.process_time() - began
                    least[way][place] = min(least[way][place], spent)
        found[gap] = {way: statistics.mean(seconds) for way, seconds in least.items()}
    return found


def peak(args: argparse.Namespace) -> int:
    """Bytes, in a process that does nothing else."""
    from trainer.data.video.decode_process import peak_bytes

    start = min(40, args.length - args.frames)
    reader(args.way, args)(str(args.folder / f"{GAPS[0]}.mp4"), start)
    return peak_bytes()


def workers(args: argparse.Namespace) -> None:
    """Loader workers as a rank has them: CPU of a clip with all that is around it, and memory."""
    import psutil
    import torch

    from trainer.config.keys import DatasetConfig
    from trainer.data.loader.build_loader import build_loader
    from trainer.data.manifest.read import read_manifest
    from trainer.data.plan.buckets import Buckets
    from trainer.data.plan.data_plan import Cursor, DataPlan

    manifest = args.folder / "clips.csv"
    form = f"{args.length},{args.size[0]},{args.size[1]},{RATE}"
    rows = [f"{GAPS[row % 2]}.mp4,caption {row},{form}" for row in range(args.clips)]
    manifest.write_text("\n".join(["path,text,num_frames,height,width,fps", *rows]) + "\n")
    batch = 4
    plan = DataPlan(
        read_manifest(manifest), Buckets.parse({args.resolution: {args.frames: (1.0, batch)}}), 1
    )
    before = psutil.Process().memory_info().rss
    loader = build_loader(plan, Cursor(), 0, 1, args.workers, DatasetConfig(clip_timeout_s=120))
    torch.set_num_threads(1)
    began, spent, count, most, own = time.process_time(), 0.0, 0, 0, 0
    for given in loader:
        spent, count = spent + given.decode_s, count + given.video.shape[0]
        shape = tuple(given.video.shape[1:])
        most = max(most, given.decoder_bytes)
        own = max(own, *(p.memory_full_info().uss for p in psutil.Process().children()))
    here = time.process_time() - began
    rank = psutil.Process().memory_info().rss - before
    clip, ahead = int(np.prod(shape)), 2 * args.workers
    print(
        f"{args.workers} workers, 2 batches of {batch} ahead each, {args.frames} frames of {shape[2]}x{shape[3]} "
        f"({clip / 1e6:.0f} MB a clip): {spent / count * 1e3:.0f} CPU ms a clip in the workers and "
        f"{here / count * 1e3:.0f} in the rank; largest worker {most / 1e6:,.0f} MB resident "
        f"(libraries and {batch * clip / 1e6:.0f} MB of shared pixels in it), {own / 1e6:,.0f} MB its own; "
        f"the rank grew by {rank / 1e6:,.0f} MB, {ahead} batches ahead are {ahead * batch * clip / 1e6:,.0f}"
    )
    loader.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs=2, default=[720, 1280], metavar="PIXELS")
    parser.add_argument("--length", type=int, default=240, help="frames of a clip")
    parser.add_argument("--bucket", type=int, nargs=2, default=[360, 640], metavar="PIXELS")
    parser.add_argument("--frames", type=int, default=51, help="of a window")
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--peaks", nargs="*", default=WAYS, help="ways whose memory is measured")
    parser.add_argument("--workers", type=int, default=4, help="of the loader")
    parser.add_argument("--resolution", default="360p", help="bucket of the loader")
    parser.add_argument("--clips", type=int, default=96, help="that the loader reads")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the clips are, or will be written")
    args = tiny.parse(
        parser, size=[180, 320], length=16, bucket=[90, 160], frames=4, windows=1, repeats=1,
        peaks=["ours"], workers=1, resolution="144p", clips=8,
    )  # fmt: skip
    if args.way:
        print(peak(args))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = args.folder or Path(temporary)
        if not (args.folder / f"{GAPS[-1]}.mp4").exists():
            write_clips(args.folder, args.length, tuple(args.size))
        print(f"load average {os.getloadavg()[0]:.1f}; {args.frames} of {args.length} frames, {args.size} to {args.bucket}")  # fmt: skip
        words = ["--bucket", *args.bucket, "--frames", args.frames, "--length", args.length]
        words += ["--folder", args.folder]
        peaks = {}
        for way in args.peaks:
            command = [sys.executable, "-m", "tests.bench.decoder", "--way", way, *map(str, words)]
            peaks[way] = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for gap, seconds in times(args).items():
            print(f"keyframe every {gap}:")
            for way, spent in seconds.items():
                peak_mb = f"{peaks[way] / 1e6:5,.0f}" if way in peaks else "-"
                print(
                    f"  {way:14} {spent * 1e3:7.0f} CPU ms  {seconds['lambda'] / spent:5.2f} x less than "
                    f"lambda  {spent / seconds['pure decoding']:5.2f} x pure decoding  "
                    f"peak {peak_mb:>5} MB"
                )
        print("ours and area downscale with antialiasing, the others without: not the same pixels")
        workers(args)
        print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
