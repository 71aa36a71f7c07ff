"""Frames out of files: the right ones, at the right size, and a reason for every file that has none."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.trainer.data.clips import frame_numbers, write_clip
from trainer.data.video.clip import check, probe, read_window
from trainer.data.video.container import ClipError
from trainer.data.video.decode import Window
from trainer.data.video.mp4 import write_mp4

ROOT = Path(__file__).parents[4]
FRAMES = 60
X264 = {"preset": "veryfast", "threads": "1"}
IRREGULAR = np.cumsum([1, 1, 2, 5, 1, 3] * 10).tolist()
KINDS = {
    "short_groups": ("a.mp4", {**X264, "g": "12", "bf": "2"}, {}),
    "one_group": ("b.mp4", {**X264, "g": "250", "bf": "3"}, {}),
    "matroska": ("c.mkv", {**X264, "g": "12", "bf": "2"}, {}),
    "transport_stream": ("d.ts", {**X264, "g": "12", "bf": "2"}, {}),
    "no_times": ("e.h264", {**X264, "g": "12", "bf": "0"}, {}),
    "variable_rate": ("f.mp4", {**X264, "g": "12", "bf": "2"}, {"pts": IRREGULAR}),
    "starts_late": ("g.mkv", {**X264, "g": "12"}, {"pts": list(range(100, 160))}),
    "avi": ("h.avi", {"g": "12", "bf": "0", "qmin": "1", "qmax": "1"}, {"codec": "mpeg4"}),
}


def read(path: Path, start=0, frames=8, interval=1, height=48, width=64, expected=FRAMES):
    pixels = np.zeros((3, frames, height, width), np.uint8)
    window = Window(start, frames, interval, height, width, expected)
    rate = read_window(str(path), window, pixels).fps
    return pixels, rate


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    made = {}
    for kind, (name, options, more) in KINDS.items():
        made[kind] = write_clip(folder / name, FRAMES, **more, **options)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_window_holds_exactly_its_frames(clips, kind):
    for start, interval in [(0, 1), (1, 1), (11, 1), (13, 3), (37, 2), (52, 1)]:
        pixels, _ = read(clips[kind], start, 8, interval)
        assert frame_numbers(pixels) == list(range(start, start + 8 * interval, interval)), start


def test_rate_and_length_come_from_the_container_without_decoding_all(clips):
    facts = probe(str(clips["short_groups"]))
    assert (facts.num_frames, facts.height, facts.width, facts.fps) == (FRAMES, 48, 64, 24.0)
    assert probe(str(clips["matroska"])).num_frames == FRAMES
    assert probe(str(clips["variable_rate"])).num_frames == FRAMES
    assert read(clips["short_groups"])[1] == 24.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [0, 55])
def test_a_window_that_fits_nowhere_is_an_error(clips, kind, start):
    with pytest.raises(ClipError, match=r"60 frames, the manifest says 70|ends before frame 60"):
        read(clips[kind], start, frames=70 if start == 0 else 61, expected=70)


def test_a_title_that_is_not_utf8_refuses_no_clip(tmp_path):
    path = tmp_path / "a.mp4"
    write_mp4(path, np.full((4, 48, 64, 3), 90, np.uint8), 24, tags={"title": "PLAINTITLE"})
    path.write_bytes(path.read_bytes().replace(b"PLAINTITLE", b"\xff\xfeABC\xe9\x80DE"[:10]))
    assert b"PLAINTITLE" not in path.read_bytes()
    assert probe(str(path)).num_frames == 4
    assert check(str(path)).num_frames == 4
    pixels, _ = read(path, frames=4, expected=4)
    assert np.abs(pixels.astype(int) - 90).max() < 8


@pytest.mark.long
def test_too_old_a_pyav_is_one_sentence_where_clips_are_read(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import av; av.__version__ = '16.1.0'\n")
    write_clip(tmp_path / "a.mp4", 4, **X264)
    (tmp_path / "rows.csv").write_text("path,text\na.mp4,a\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainer.data", "probe", "rows.csv", "out.csv"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "PyAV 16.1.0 is too old to read clips: 17 or newer is needed" in done.stderr
    assert "Traceback" not in done.stderr


def left_half_white(_: int) -> np.ndarray:
    picture = np.full((64, 128), 16, np.uint8)
    picture[:, :64] = 235
    return picture


def test_picture_covers_the_size_and_is_cut_at_its_centre(tmp_path):
    path = write_clip(tmp_path / "a.mp4", 2, 64, 128, picture=left_half_white, **X264)
    for height, width in [(32, 32), (64, 64), (16, 48), (128, 128), (30, 33)]:
        pixels, _ = read(path, 0, 2, 1, height, width, 2)
        middle = width / 2
        assert pixels[..., : int(middle - 2)].min() > 225, (height, width)
        assert pixels[..., int(middle + 3) :].max() < 30, (height, width)


def test_colours_keep_their_channels(tmp_path):
    path = tmp_path / "red.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.thread_count = 1
        image = np.zeros((48, 64, 3), np.uint8)
        image[...] = (200, 100, 20)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))
    pixels, _ = read(path, frames=1, height=24, width=24, expected=1)
    assert np.abs(pixels.mean((1, 2, 3)) - (200, 100, 20)).max() < 4


@pytest.mark.skipif(
    not hasattr(av.video.stream.VideoStream, "set_display_rotation"), reason="PyAV cannot write it"
)
@pytest.mark.parametrize(("angle", "white"), [(90, "bottom"), (-90, "top"), (180, "right")])
def test_rotation_of_the_container_is_applied(tmp_path, angle, white):
    """Stored with the left half white; the angle is counter-clockwise, as FFmpeg counts it."""
    path = write_clip(
        tmp_path / "a.mp4", 1, 64, 128, picture=left_half_white, rotation=angle, **X264
    )
    with av.open(str(path)) as container:
        assert next(container.decode(video=0)).rotation == angle or angle == 180
    facts = probe(str(path))
    assert (facts.height, facts.width) == ((64, 128) if angle == 180 else (128, 64))
    pixels, _ = read(path, 0, 1, 1, facts.height, facts.width, 1)
    sides = {
        "top": pixels[:, :, : facts.height // 2 - 4],
        "bottom": pixels[:, :, facts.height // 2 + 4 :],
        "right": pixels[..., facts.width // 2 + 4 :],
    }
    assert sides[white].min() > 225
    assert pixels.mean() == pytest.approx(127, abs=8)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_still_picture_is_a_clip_of_one_frame(tmp_path, name):
    Image.new("RGB", (64, 48), (200, 100, 20)).save(tmp_path / name)
    pixels, _ = read(tmp_path / name, 0, 1, 1, 24, 32, 1)
    assert np.abs(pixels.mean((1, 2, 3)) - (200, 100, 20)).max() < 4


def damaged(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.mp4"
    if kind == "missing":
        return path
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    elif kind == "html":
        path.write_text("<html>404 not found</html>" * 50)
    elif kind == "sound":
        path = folder / "sound.wav"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    else:
        noise = np.random.default_rng(0)
        write_clip(path, 30, picture=lambda _: noise.integers(16, 235, (48, 64)), g="30", **X264)
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        if kind == "truncated":  # the index stands at the end
            data = data[:middle]
        elif kind == "zeroed":
            data[middle : middle + 4000] = bytes(4000)
        elif kind == "flipped":
            for place in range(middle, middle + 3000, 7):
                data[place] ^= 0x55
        path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "No such file"),
        ("folder", "not a regular file"),
        ("fifo", "not a regular file"),
        ("empty", "empty file"),
        ("html", "Invalid data"),
        ("sound", "no video stream"),
        ("truncated", "Invalid data|moov"),
        ("zeroed", "damaged|Invalid data|missing|ends before"),
        ("flipped", "damaged|Invalid data|missing|ends before"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_its_reason(tmp_path, kind, reason):
    path = damaged(tmp_path, kind)
    with pytest.raises(ClipError, match=reason):
        read(path, 0, 30, 1, 48, 64, 30)
    if kind not in ("zeroed", "flipped"):
        with pytest.raises(ClipError, match=reason):
            probe(str(path))


def test_frames_of_a_clip_are_freed_one_by_one(clips):
    """PyAV 17's frame.side_data makes cycles: a worker held 350 MB of frames that nobody needed."""
    gc.collect()
    gc.disable()
    try:
        read(clips["short_groups"], 0, FRAMES)
        alive = [one for one in gc.get_objects() if isinstance(one, av.VideoFrame)]
    finally:
        gc.enable()
    assert len(alive) < 5
