"""Containers, codecs and file names: length and every window are what plain decoding gives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.trainer.data.clips import write_clip
from trainer.data.video.clip import check, probe, read_window, scaler
from trainer.data.video.container import ClipError
from trainer.data.video.decode import Window

FRAMES, WINDOW, SIZE = 48, 4, (12, 16)
X264 = {"preset": "veryfast", "threads": "1"}
FINE = {"g": "12", "qmin": "1", "qmax": "1"}
REAL_TIME = {"g": "12", "deadline": "realtime", "cpu-used": "8", "threads": "1"}
AHEAD = {"g": "40", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "4", "threads": "1"}
IRREGULAR = np.cumsum([1, 1, 2, 5, 1, 3] * (FRAMES // 6)).tolist()


def h264(groups: int, references: int, **more: Any) -> dict[str, Any]:
    return {**X264, "g": str(groups), "bf": str(references), **more}


# name -> how it is written
CASES: dict[str, dict[str, Any]] = {
    "plain.mp4": h264(12, 2),
    "one-group.mp4": h264(250, 3),
    "open-groups.mp4": {**X264, "x264-params": "open-gop=1:keyint=12:bframes=3"},
    "plain.mov": h264(12, 2),
    "plain.mkv": h264(12, 2),
    "plain.ts": h264(12, 2),
    "plain.flv": h264(12, 2),
    "no-times.h264": h264(12, 0),
    "variable.mp4": h264(12, 2, pts=IRREGULAR),
    "late.mkv": h264(12, 2, pts=list(range(100, 100 + FRAMES))),
    "hevc.mp4": {"codec": "libx265", "preset": "ultrafast",
                 "x265-params": "log-level=none:pools=1:keyint=12"},
    "mpeg4.avi": {"codec": "mpeg4", "bf": "2", **FINE},
    "mpeg2.mpg": {"codec": "mpeg2video", "bf": "2", **FINE},
    "mpeg2.ts": {"codec": "mpeg2video", "bf": "2", **FINE},
    "mpeg2.m2v": {"codec": "mpeg2video", "bf": "2", **FINE},
    "vp8.webm": {"codec": "libvpx", **AHEAD},
    "vp9.webm": {"codec": "libvpx-vp9", **AHEAD},
    "quick.webm": {"codec": "libvpx-vp9", **REAL_TIME},
    "wmv2.wmv": {"codec": "wmv2", **FINE},
    "lossless.mkv": {"codec": "ffv1"},
}  # fmt: skip


def decoded(path: Path) -> list[np.ndarray]:
    """All frames in the order plain decoding gives them, scaled as a window's are."""
    put, window = scaler("bilinear"), Window(0, 1, 1, *SIZE, 1)
    frames = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_type = "NONE"
        for frame in container.decode(stream):
            pixels = np.zeros((3, *SIZE), np.uint8)
            put(frame, window, pixels)
            frames.append(pixels)
    return frames


def wrong_windows(path: Path, frames: list[np.ndarray]) -> list[int]:
    """Starts whose window is not the one of plain decoding."""
    wrong = []
    for start in range(len(frames) - WINDOW + 1):
        pixels = np.zeros((3, WINDOW, *SIZE), np.uint8)
        read_window(str(path), Window(start, WINDOW, 1, *SIZE, len(frames)), pixels)
        if not np.array_equal(pixels, np.stack(frames[start : start + WINDOW], axis=1)):
            wrong.append(start)
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_length_and_every_window_are_those_of_plain_decoding(tmp_path: Path, name: str) -> None:
    path = write_clip(tmp_path / name, FRAMES, **CASES[name])
    frames = decoded(path)
    assert len(frames) == FRAMES
    assert probe(str(path)).num_frames == check(str(path)).num_frames == FRAMES
    assert wrong_windows(path, frames) == []


def cut(source: Path, target: Path, start: int) -> Path:
    """What `ffmpeg -ss -c copy` makes: from the keyframe on, and an edit list that hides the first."""
    with av.open(str(source)) as before, av.open(str(target), "w") as after:
        stream = before.streams.video[0]
        copy = after.add_stream_from_template(stream)
        at = int(start / 24 / stream.time_base)
        before.seek(at, stream=stream, backward=True)
        for packet in before.demux(stream):
            if packet.dts is None or packet.pts is None:
                continue
            packet.pts, packet.dts, packet.stream = packet.pts - at, packet.dts - at, copy
            after.mux(packet)
    return target


@pytest.mark.parametrize("name", ["a.mp4", "a.mov"])
@pytest.mark.parametrize(("groups", "references"), [(20, 2), (20, 0), (250, 3)])
@pytest.mark.parametrize("start", [21, 33])
def test_frames_that_an_edit_list_hides_do_not_count(
    tmp_path: Path, name: str, groups: int, references: int, start: int
) -> None:
    source = write_clip(tmp_path / f"whole-{name}", FRAMES, **h264(groups, references))
    path = cut(source, tmp_path / name, start)
    with av.open(str(path)) as container:
        assert any(entry.is_discard for entry in container.streams.video[0].index_entries)
    frames = decoded(path)
    assert probe(str(path)).num_frames == check(str(path)).num_frames == len(frames)
    assert wrong_windows(path, frames) == []


def large_picture(path: Path, grey: int, kind: str | None = None) -> Path:
    """Above the 2 KB by which FFmpeg knows a small picture's format."""
    noise = np.random.default_rng(grey).integers(-20, 20, (240, 320, 3))
    Image.fromarray((noise + grey).astype(np.uint8)).save(path, format=kind)
    return path


STILLS = ("a.png", "a.jpg", "a.jpeg", "A.JPG", "a.bmp", "a.webp", "a.tif", "a.ppm", "a.gif")


@pytest.mark.parametrize("name", STILLS)
@pytest.mark.parametrize("make", [large_picture, lambda path, grey: small_picture(path, grey)])
def test_a_still_picture_has_one_frame(
    tmp_path: Path, name: str, make: Callable[[Path, int], Path]
) -> None:
    path = make(tmp_path / name, 120)
    assert probe(str(path)).num_frames == check(str(path)).num_frames == 1
    assert decoded(path)[0].mean() == pytest.approx(120, abs=4)
    pixels = np.zeros((3, 1, *SIZE), np.uint8)
    read_window(str(path), Window(0, 1, 1, *SIZE, 1), pixels)
    assert np.array_equal(pixels[:, 0], decoded(path)[0])


def small_picture(path: Path, grey: int) -> Path:
    Image.new("RGB", (32, 24), (grey,) * 3).save(path)
    return path


ODD_NAMES = (
    "x%d", "x%03d", "x*", "x?", "x[12]", "{x,y}", "x%%", "a b", "a;b", "a|b", "a'b", 'a"b', "$(x)",
    "-x", "größer", "日本", "a\nb", "a\\b", "http:x", "concat:x", "file:x", "a,b", "#x", b"\xff\xe9x",
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".mp4"])
@pytest.mark.parametrize("stem", ODD_NAMES)
def test_an_odd_name_means_the_file_of_that_name(
    tmp_path: Path, stem: str | bytes, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):  # what FFmpeg would take a pattern for
        large_picture(tmp_path / f"x{number}{suffix}", 40, "png")
    name = (os.fsdecode(stem) if isinstance(stem, bytes) else stem) + suffix
    if suffix == ".mp4":
        grey = {"picture": lambda _: np.full((48, 64), 180)}
        write_clip(tmp_path / "plain.mp4", 1, **grey, **X264).rename(tmp_path / name)
    else:
        large_picture(tmp_path / f"plain{suffix}", 200).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for path in (f"{tmp_path}/{name}", name):
        assert probe(path).num_frames == check(path).num_frames == 1
        pixels = np.zeros((3, 1, *SIZE), np.uint8)
        read_window(path, Window(0, 1, 1, *SIZE, 1), pixels)
        assert pixels.mean() == pytest.approx(196, abs=12)


@pytest.fixture
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port, and what was said to it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    heard.append(caller.recv(200))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n"
CONCAT = "ffconcat version 1.0\nfile {}\n"
SDP = (
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    "m=video {} RTP/AVP 96\na=rtpmap:96 H264/90000\n"
)
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period>'
    '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>"
)


def read_first(path: str) -> None:
    read_window(path, Window(0, 1, 1, *SIZE, 1), np.zeros((3, 1, *SIZE), np.uint8))


def refusal(look: Callable[[str], Any], path: Path) -> str:
    """What is said of a file that is no clip; "" when it passes for one."""
    try:
        found = look(str(path))
    except ClipError as error:
        return str(error)
    return str((found or {}).get("error", "")) if isinstance(found, dict) else ""


@pytest.mark.long
def test_a_clip_that_names_other_files_or_hosts_is_refused(
    tmp_path: Path, listening: tuple[int, list[bytes]]
) -> None:
    port, heard = listening
    other = write_clip(tmp_path / "other.ts", 6, **X264)
    (tmp_path / "secret.txt").write_text("secret")
    url = f"http://127.0.0.1:{port}/a.ts"
    places = (url, str(other), other.name, "secret.txt", "/etc/passwd")
    texts = [form.format(place) for form in (HLS, CONCAT, DASH) for place in places]
    texts.append(SDP.format(port))
    tried = 0
    for text in texts:
        for suffix in (".mp4", ".m3u8", ".ffconcat", ".sdp", ".mpd", ".mkv", ".ts", ".jpg"):
            path = tmp_path / f"clip{suffix}"
            path.write_text(text)
            for look in (probe, check, read_first):
                assert refusal(look, path)
                tried += 1
    for path in (
        url,
        f"concat:{other}|{other}",
        f"subfile,,start,0,end,0,,:{other}",
        f"file:{other}",
    ):
        with pytest.raises(ClipError, match="No such file"):
            probe(path)
    assert tried == 16 * 8 * 3
    assert heard == []
