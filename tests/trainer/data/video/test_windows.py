"""Any window of any clip, and any damage to a file: the right frames or a reason, never anything else."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.clips import frame_numbers, write_clip
from tests.trainer.data.rows import manifest_of
from trainer.config.keys import DatasetConfig
from trainer.data.loader.microbatch import frame_rate
from trainer.data.loader.task import make_task
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan
from trainer.data.video.clip import check, probe, read_window
from trainer.data.video.container import ClipError
from trainer.data.video.decode import Decoder, Window

FRAMES = 60
SHAPE = (3, 4, 24, 32)
# The same examples each time: what a campaign finds becomes a case, it does not come up by chance.
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
X264 = {"preset": "veryfast", "threads": "1"}
KINDS = {
    "pyramid": ("a.mp4", {"g": "60", "bf": "7", "b-pyramid": "normal"}, {}),
    "no references": ("b.mp4", {"g": "24", "bf": "3", "b-pyramid": "none"}, {}),
    "open groups": ("c.mp4", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, {}),
    "refreshed": ("d.mp4", {"g": "30", "bf": "0", "x264-params": "intra-refresh=1"}, {}),
    "variable rate": ("e.mp4", {"g": "12"}, {"pts": np.cumsum([1, 1, 2, 5, 1, 3] * 10).tolist()}),
    "hevc": ("f.mp4", {"x265-params": "log-level=none:pools=none:keyint=20"}, {"codec": "libx265"}),
    "vp9": ("g.mp4", {"g": "20", "deadline": "realtime", "cpu-used": "8"}, {"codec": "libvpx-vp9"}),
    "av1": ("h.mp4", {"preset": "12", "g": "20"}, {"codec": "libsvtav1"}),
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> dict[str, Path]:
    folder, made = tmp_path_factory.mktemp("clips"), {}
    os.environ.setdefault("SVT_LOG", "0")
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    for kind, (name, options, more) in KINDS.items():
        first = X264 if "codec" not in more else {}
        made[kind] = write_clip(folder / name, FRAMES, 64, 64, **more, **first, **options)
    # SVT-AV1 gives the thread that calls it real-time priority where it may (root). Later tests and
    # their processes would keep it, and one that computes would take a processor from all others.
    os.sched_setscheduler(0, policy, priority)
    return made


@pytest.mark.long
@given(
    st.integers(0, FRAMES - 1),
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(list(KINDS)),
    st.booleans(),
)
@settings(QUIET, max_examples=120)
def test_any_window_of_any_codec_holds_exactly_its_frames(
    clips, start, frames, interval, kind, is_spread
):
    out = np.zeros((3, frames, 64, 64), np.uint8)
    end = start + frames * interval
    wanted = list(range(start, end, interval))
    if is_spread:  # upstream's formula, in whole numbers
        parts = max(1, frames - 1)
        wanted = [start + place * (end - 1 - start) // parts for place in range(frames)]
    window = Window(start, frames, interval, 64, 64, FRAMES, is_spread=is_spread)
    assert window.places == wanted
    if wanted[-1] >= FRAMES:
        with pytest.raises(ClipError, match=r"60 frames|ends before"):
            read_window(str(clips[kind]), window, out)
    else:
        read_window(str(clips[kind]), window, out)
        assert frame_numbers(out) == wanted


@pytest.mark.long
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.integers(1, 60),
    st.integers(1, 6),
    st.integers(0, 2**40),
    st.integers(0, 5),
)
@settings(QUIET, max_examples=60)
def test_a_window_never_leaves_its_clip(lengths, frames, interval, seed, epoch):
    """Upstream's choice: the start is drawn from all but the last possible one."""
    count = len(lengths)
    size = np.full(count, 64, np.int32)
    paths = [f"{n}.mp4" for n in range(count)]
    manifest = Manifest(
        Path("m.csv"), Path("/clips"), paths, paths, np.array(lengths, np.int32), size, size,
        np.full(count, 24, np.float32),
    )  # fmt: skip
    buckets = Buckets.parse({"64px": {frames: (1.0, 1)}})
    plan = DataPlan(manifest, buckets, seed, frame_interval=interval)
    for index in range(len(plan.epoch(epoch))):
        task = make_task(plan, epoch, index)
        assert task == make_task(plan, epoch, index)
        for clip in (*task.clips, *task.spares):
            assert clip.expected == lengths[clip.row]
            last = clip.start + (frames - 1) * interval
            assert 0 <= clip.start <= max(0, clip.expected - frames * interval - 1)
            assert last < clip.expected


@pytest.mark.parametrize(("interval", "others", "most"), [(1, 0, 0), (2, 1, 1), (3, 26, 2)])
def test_frames_that_upstream_takes_are_the_default(interval, others, most):
    """Counted with its formula for 51 frames."""
    manifest = manifest_of([400], [64], [64])
    buckets = Buckets.parse({"64px": {51: (1.0, 1)}})
    plan = DataPlan(manifest, buckets, 1, frame_interval=interval)
    spread, even = (
        Window(0, task.bucket.frames, interval, 64, 64, 1, is_spread=task.is_spread).places
        for task in (
            make_task(plan, 0, 0),
            make_task(plan, 0, 0, DatasetConfig(frame_spacing="even")),
        )
    )
    differences = [abs(one - other) for one, other in zip(spread, even, strict=True)]
    assert (sum(map(bool, differences)), max(differences)) == (others, most)


@pytest.mark.parametrize(
    ("file", "stated", "interval", "upstream", "exact"),
    [
        (29.97, 24.0, 1, 29.0, 24.0),
        (23.976, float("nan"), 1, 23.0, 23.976),
        (59.94, 59.94, 2, 29.0, 29.97),
        (0.0, 25.0, 1, 25.0, 25.0),  # a raw stream states no rate
        (0.5, float("nan"), 1, 0.5, 0.5),
        (0.0, float("nan"), 1, 0.0, 0.0),
    ],
)
def test_rate_that_the_model_is_told_is_upstreams_unless_the_exact_one_is_asked_for(
    file, stated, interval, upstream, exact
):
    buckets = Buckets.parse({"64px": {8: (1.0, 1)}})
    plan = DataPlan(manifest_of([400], [64], [64]), buckets, 1, frame_interval=interval)
    for way, rate in {"upstream": upstream, "exact": exact}.items():
        task = make_task(plan, 0, 0, DatasetConfig(fps_condition=way))
        clip = dataclasses.replace(task.clips[0], fps=stated)
        assert frame_rate(clip, file, task) == pytest.approx(rate)


Damage = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("zero"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("drop"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("big"), st.floats(0, 1), st.just(0)),
)


def damaged(data: bytes, kind: str, share: float, amount: int) -> bytes:
    at = int(share * (len(data) - 1)) if data else 0
    if kind == "flip":
        return data[:at] + bytes(byte ^ amount for byte in data[at : at + 1]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "zero":
        return data[:at] + bytes(len(data[at : at + amount])) + data[at + amount :]
    if kind == "drop":
        return data[:at] + data[at + amount :]
    if kind == "repeat":
        return data[: at + amount] + data[at:]
    return data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]  # a length or count of 4 billion


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    """Small whole files, a decoder, and where to write."""
    folder = tmp_path_factory.mktemp("victims")
    bytes_ = [
        write_clip(folder / "a.mp4", 12, **X264, g="4", bf="2").read_bytes(),
        write_clip(folder / "b.mkv", 12, **X264, g="4").read_bytes(),
        write_clip(folder / "c.mp4", 12, rotation=90, pts=[*range(0, 24, 4), *range(24, 30)], **X264).read_bytes(),
    ]  # fmt: skip
    decoder = Decoder(clip_timeout_s=60)
    yield bytes_, decoder, folder
    decoder.close()


def survives(victims, which: int, hurts: list, start: int) -> None:
    bytes_, decoder, folder = victims
    data = bytes_[which]
    for hurt in hurts:
        data = damaged(data, *hurt)
    path, good = folder / ("x.mkv" if which == 1 else "x.mp4"), folder / "a.mp4"
    path.write_bytes(data)
    asked = [(str(path), Window(start, 4, 1, 24, 32, 12)), (str(good), Window(2, 4, 1, 24, 32, 12))]
    pixels, (bad, after) = decoder.decode(asked, SHAPE)
    assert "no answer within" not in bad.error
    assert after.error == ""
    assert frame_numbers(pixels[1]) == [2, 3, 4, 5]


HURTS = st.lists(Damage, min_size=1, max_size=6)


@pytest.mark.long
@given(st.integers(0, 2), HURTS, st.integers(0, 8))
@settings(QUIET, max_examples=60)
def test_damaged_bytes_are_a_reason_and_harm_no_other_clip(victims, which, hurts, start):
    survives(victims, which, hurts, start)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(st.integers(0, 2), HURTS, st.integers(0, 8))
@settings(QUIET, max_examples=20_000, derandomize=False)
def test_much_damage(victims, which, hurts, start):
    survives(victims, which, hurts, start)


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.avi", "a.mkv", "a.ts"])
def test_a_manifest_that_states_too_many_frames_is_the_same_for_all_containers(tmp_path, name):
    """Open-Sora's tools write the header's count, with frames that an edit list hides."""
    path = str(write_clip(tmp_path / name, 60, threads="1", preset="ultrafast", crf="4", g="20"))

    def read(start: int, frames: int, expected: int, interval: int = 1, **more: bool) -> list[int]:
        out_CTHW = np.zeros((3, frames, 48, 64), np.uint8)
        window = Window(start, frames, interval, 48, 64, expected, **more)
        read_window(path, window, out_CTHW)
        return frame_numbers(out_CTHW)

    assert read(0, 7, 61) == list(range(7))
    assert read(50, 10, 90) == list(range(50, 60))
    # The window is behind the end: it begins where upstream's begin in clips of 60 frames.
    assert read(70, 10, 90) == list(range(20, 30))
    assert read(75, 5, 90, 3) == list(range(75 % 45, 75 % 45 + 15, 3))
    for wrong in (lambda: read(0, 61, 70), lambda: read(70, 10, 90, is_fixed=True)):
        with pytest.raises(ClipError, match="has 60 frames, the manifest says"):
            wrong()


@pytest.mark.long
def test_frames_before_the_first_keyframe_are_not_counted(tmp_path):
    """A recording that begins between two keyframes."""
    whole = write_clip(tmp_path / "a.ts", 60, g="20", bf="0", threads="1", preset="ultrafast")
    cut = tmp_path / "b.ts"
    with av.open(str(whole)) as source, av.open(str(cut), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if number >= 9 and packet.size:
                packet.stream = stream
                out.mux(packet)
    decoded = check(str(cut)).num_frames
    assert 0 < decoded < 51
    assert probe(str(cut)).num_frames == decoded
    out_CTHW = np.zeros((3, 3, 48, 64), np.uint8)
    read_window(str(cut), Window(25, 3, 1, 48, 64, decoded), out_CTHW)
    assert frame_numbers(out_CTHW) == [60 - decoded + 25 + n for n in range(3)]
