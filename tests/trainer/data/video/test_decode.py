"""The decoding process: its pixels, its deadline, its end, and what it does not load."""

import array
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.trainer.data.clips import frame_numbers, write_clip
from tests.trainer.small_disk import small_disk
from trainer.data.video.decode import Decoder, DecoderBroken, Window
from trainer.data.video.decode_process import ClipCache

SHAPE = (3, 4, 24, 32)
WINDOW = Window(2, 4, 1, 24, 32, 12)
X264 = {"preset": "ultrafast", "threads": "1", "bf": "0"}


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("clips")
    return [str(write_clip(folder / f"{n}.mp4", 12, **X264)) for n in range(8)]


@pytest.fixture
def decoder():
    decoder = Decoder(clip_timeout_s=20)
    yield decoder
    decoder.close()


def wait_for(condition, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_every_clip_gets_its_own_pixels_or_reason(decoder, clips, tmp_path):
    asked = [
        (clips[0], WINDOW),
        (str(tmp_path / "none.mp4"), WINDOW),
        (clips[1], WINDOW._replace(start=5)),
    ]
    asked.append(("x" * 5000, WINDOW))
    pixels, replies = decoder.decode(asked, SHAPE)
    assert frame_numbers(pixels[0]) == [2, 3, 4, 5]
    assert frame_numbers(pixels[2]) == [5, 6, 7, 8]
    assert [reply.error for reply in replies] == [
        "",
        "No such file or directory",
        "",
        "path too long",
    ]
    assert replies[0].fps == 24
    assert decoder.replaced == 0
    more, _ = decoder.decode([(clip, WINDOW) for clip in clips] * 20, SHAPE)  # memory grows
    assert (more == pixels[0]).all()
    assert decoder.decode([], SHAPE)[1] == []


@pytest.mark.long
def test_only_the_clip_that_is_late_is_refused_and_the_process_replaced(clips):
    decoder = Decoder(clip_timeout_s=0.5)
    decoder.decode([(clips[0], WINDOW)], SHAPE)
    first = decoder.process.pid
    os.kill(first, signal.SIGSTOP)  # what a dead network mount looks like from here
    began = time.monotonic()
    pixels, replies = decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
    assert replies[0].error == "no answer within 0.5 s"
    assert "no answer within" in replies[0].error
    assert not any(reply.error for reply in replies[1:])
    assert frame_numbers(pixels[7]) == [2, 3, 4, 5]
    assert time.monotonic() - began < 20
    assert decoder.replaced == 1
    assert is_gone(first)
    decoder.close()


@pytest.mark.long
def test_process_that_died_between_batches_costs_no_clip(decoder, clips):
    decoder.decode([(clips[0], WINDOW)], SHAPE)
    first = decoder.process.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: is_gone(first))
    _, replies = decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
    assert not any(reply.error for reply in replies)


def kill_busy(decoder: Decoder, times: int) -> threading.Thread:
    """Kill the helper while it has a clip, so many times; the first one is stopped beforehand."""
    first = decoder.process.pid
    os.kill(first, signal.SIGSTOP)
    # A read that the signal has interrupted may still take what arrives meanwhile.
    wait_for(lambda: Path(f"/proc/{first}/stat").read_text().rpartition(") ")[2][0] == "T")

    def work() -> None:
        seen = []
        for _ in range(times):
            wait_for(lambda: decoder.process is not None and decoder.process.pid not in seen)
            seen.append(decoder.process.pid)
            wait_for(lambda: has_request(seen[-1]))
            os.kill(seen[-1], signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def has_request(pid: int) -> bool:
    """Whether bytes wait in a stopped process's stdin."""
    os.kill(pid, signal.SIGSTOP)
    with Path(f"/proc/{pid}/fd/0").open("rb", buffering=0) as pipe:
        waiting = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] > 0


@pytest.mark.long
def test_clip_whose_process_was_killed_by_somebody_is_read_once_more(decoder, clips):
    decoder.decode([(clips[0], WINDOW)], SHAPE)
    killer = kill_busy(decoder, 1)
    pixels, replies = decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
    killer.join()
    assert not any(reply.error for reply in replies)
    assert frame_numbers(pixels[0]) == [2, 3, 4, 5]
    assert decoder.replaced == 1


@pytest.mark.long
def test_clip_that_ends_two_processes_is_refused_alone(clips, tmp_path, monkeypatch):
    deadly = tmp_path / "deadly.mp4"
    deadly.write_bytes(Path(clips[0]).read_bytes())
    (tmp_path / "sitecustomize.py").write_text(
        "import os, av\n"
        "real = av.open\n"
        "def deadly(name, *args, **options):\n"
        "    if 'deadly' in str(name): os.kill(os.getpid(), 9)\n"
        "    return real(name, *args, **options)\n"
        "av.open = deadly\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    decoder = Decoder(clip_timeout_s=20)
    paths = [clips[0], str(deadly), clips[1]]
    _, replies = decoder.decode([(path, WINDOW) for path in paths], SHAPE)
    assert [reply.error for reply in replies] == ["", "the decoding process died: signal 9", ""]
    assert decoder.ask({"what": "probe", "path": str(deadly)}) == {
        "error": "the decoding process died: signal 9",
        "again": True,
    }
    assert decoder.replaced == 4
    decoder.close()


@pytest.mark.long
def test_facts_of_a_clip_are_asked_once_more_where_the_process_was_killed(decoder, clips):
    decoder.decode([(clips[0], WINDOW)], SHAPE)
    killer = kill_busy(decoder, 1)
    facts = decoder.ask({"what": "probe", "path": clips[0]})
    killer.join()
    assert "error" not in facts
    assert decoder.replaced == 1


@pytest.mark.long
def test_clips_without_time_left_have_errors(decoder, clips):
    _, replies = decoder.decode([(clip, WINDOW) for clip in clips], SHAPE, time.monotonic() - 1)
    assert {reply.error for reply in replies} == {"no time left"}


@pytest.mark.long
def test_fifo_and_late_writers_are_refused_at_once(decoder, tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    _, replies = decoder.decode([(str(tmp_path / "pipe.mp4"), WINDOW)], SHAPE)
    assert replies[0].error == "not a regular file"
    assert decoder.replaced == 0


@pytest.mark.long
def test_process_has_one_thread_and_no_torch(decoder, clips):
    decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
    process = psutil.Process(decoder.process.pid)
    assert process.num_threads() == 1
    assert "libtorch" not in Path(f"/proc/{decoder.process.pid}/maps").read_text()
    assert process.environ()["CLUSTERCTL_ROLE"] == "decode"
    assert process.name() == "decode"


@pytest.mark.long
def test_decoder_that_cannot_start_says_why(tmp_path, monkeypatch, clips):
    (tmp_path / "av.py").write_text("raise ImportError('libavcodec.so.62: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DecoderBroken, match=r"does not start: libavcodec\.so\.62"):
        Decoder().decode([(clips[0], WINDOW)], SHAPE)


@pytest.mark.long
def test_abort_from_another_thread_ends_a_waiting_decode(clips):
    decoder = Decoder(clip_timeout_s=60)
    decoder.decode([(clips[0], WINDOW)], SHAPE)
    os.kill(decoder.process.pid, signal.SIGSTOP)
    timer = threading.Timer(0.2, decoder.abort)
    timer.start()
    began = time.monotonic()
    with pytest.raises(DecoderBroken, match="ended"):
        decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
    assert time.monotonic() - began < 20
    timer.join()


def test_process_ends_with_its_owner_even_when_that_is_killed(clips, tmp_path):
    code = (
        "import sys, time\nfrom trainer.data.video.decode import Decoder\nfrom trainer.data.video.decode import Window\nd = Decoder()\n"
        f"d.decode([({clips[0]!r}, Window(0, 4, 1, 24, 32, 12))], (3, 4, 24, 32))\n"
        "print(d.process.pid, flush=True)\ntime.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    helper = int(owner.stdout.readline())
    os.kill(helper, signal.SIGSTOP)  # it cannot read that its input ended
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: is_gone(helper))


@pytest.mark.long
def test_cache_gives_the_same_pixels_until_the_file_changes(tmp_path):
    path = write_clip(tmp_path / "a.mp4", 12, **X264)
    decoder = Decoder(cache_bytes=1 << 20)
    ask = [(str(path), WINDOW)]
    first = decoder.decode(ask, SHAPE)[0].copy()
    again, replies = decoder.decode(ask, SHAPE)
    assert (again == first).all()
    assert replies[0].fps == 24
    other, _ = decoder.decode([(str(path), WINDOW._replace(start=3))], SHAPE)
    assert frame_numbers(other[0]) == [3, 4, 5, 6]
    write_clip(path, 12, picture=lambda k: np.full((48, 64), 100 + 3 * k), **X264)
    changed, _ = decoder.decode(ask, SHAPE)
    assert not (changed == first).all()
    path.unlink()
    assert decoder.decode(ask, SHAPE)[1][0].error == "No such file or directory"
    decoder.close()


def test_cache_is_bounded_and_drops_what_was_not_used_longest():
    cache = ClipCache(250)
    for name in "abc":
        cache.put((name,), np.zeros(100, np.uint8), 1.0)
        cache.get(("a",))
    assert cache.used_bytes == 200
    assert cache.get(("b",)) is None
    assert cache.get(("a",)) is not None
    cache.put(("big",), np.zeros(300, np.uint8), 1.0)
    assert cache.get(("big",)) is None


@pytest.mark.long
def test_probe_gives_facts_or_a_reason(decoder, clips, tmp_path):
    assert decoder.ask({"what": "probe", "path": clips[0]}) | {"cpu_s": 0, "memory_bytes": 0} == {
        "num_frames": 12,
        "height": 48,
        "width": 64,
        "fps": 24.0,
        "bytes": Path(clips[0]).stat().st_size,
        "video_streams": 1,
        "cpu_s": 0,
        "memory_bytes": 0,
    }
    assert (
        decoder.ask({"what": "probe", "path": str(tmp_path / "none")})["error"]
        == "No such file or directory"
    )


@pytest.mark.long
def test_odd_file_names_arrive(decoder, tmp_path):
    name = os.fsdecode(b'odd \xff "name"\n\\.mp4')
    path = write_clip(tmp_path / "a.mp4", 12, **X264).rename(tmp_path / name)
    _, replies = decoder.decode([(str(path), WINDOW)], SHAPE)
    assert replies[0].error == ""
    assert json.dumps(name)


@pytest.mark.long
def test_a_full_folder_of_heartbeats_costs_no_clip_and_no_process(clips, tmp_path, monkeypatch):
    with small_disk(tmp_path / "beats", "16k,nr_inodes=8") as beats:
        monkeypatch.setenv("CLUSTERCTL_HEARTBEATS", str(beats))
        decoder = Decoder(clip_timeout_s=20)
        decoder.start()
        with contextlib.suppress(OSError), (beats / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            _, replies = decoder.decode([(clip, WINDOW) for clip in clips], SHAPE)
            assert [reply.error for reply in replies] == [""] * len(clips)
            assert decoder.replaced == 0
        finally:
            decoder.close()
