"""Every way a clip can be wrong, through the loader as training has it: replaced, told, no step missing."""

import os
import re
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.trainer.data.clips import write_clip
from tests.trainer.data.loader.test_loader import FAST, damage, plan_of
from trainer.data import digits
from trainer.data.loader.build_loader import build_loader
from trainer.data.plan.data_plan import Cursor
from trainer.data.video.decode import Decoder, Window

X264 = {"preset": "ultrafast", "threads": "1"}


def noisy(path: Path, frames: int = 9, **more) -> bytes:
    noise = np.random.default_rng(0)
    write_clip(
        path, frames, picture=lambda _: noise.integers(16, 235, (48, 64)), g="30", **X264, **more
    )
    return path.read_bytes()


def index_first(path: Path) -> bytes:
    """The same file with its index in front of the data."""
    out = path.with_name(f"moved-{path.name}")
    with (
        av.open(str(path)) as source,
        av.open(str(out), "w", options={"movflags": "faststart"}) as copy,
    ):
        stream = copy.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                copy.mux(packet)
    data = out.read_bytes()
    out.unlink()
    assert data.index(b"moov") < data.index(b"mdat")
    return data


def apply_faults(path: Path, kind: str) -> None:
    """Make of a clip of 9 frames one that cannot be used."""
    path.unlink()
    if kind == "cut in a packet":
        noisy(path)
        data = index_first(path)
        path.write_bytes(data[: len(data) * 6 // 10])
    elif kind == "flipped bits":
        data = bytearray(noisy(path))
        begin = data.index(b"mdat")
        for place in range(begin + len(data) // 3, begin + len(data) // 2, 7):
            data[place] ^= 0x55
        path.write_bytes(data)
    elif kind == "a still":
        Image.new("RGB", (64, 48)).save(path, "PNG")
    elif kind == "a folder":
        path.mkdir()


KINDS = {
    "cut in a packet": r"Invalid data|ends before|damaged|missing|End of file",
    "flipped bits": r"Invalid data|damaged|missing|ends before",
    "a still": r"has 1 frame|ends before frame 1|manifest says 9",
    "a folder": r"not a regular file",
    "missing": r"No such file",
    "empty": r"empty file",
    "fifo": r"not a regular file",
    "short": r"has 5 frames, the manifest says 9",
    "noise": r"Invalid data",
}
GOOD = ("variable rate", "turned", "matroska")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "set"
    digits.make(out, clips=60, seed=3)
    return out


@pytest.fixture
def broken(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "set"))
    plan = plan_of(copy)
    order = plan.epoch(0).cell_orders[0].tolist()
    rows = {kind: order[3 + 3 * place] for place, kind in enumerate(KINDS)}
    for kind, row in rows.items():
        if kind in ("missing", "empty", "fifo", "short", "noise"):
            damage(plan, row, kind)
        else:
            apply_faults(Path(plan.manifest.locate(row)), kind)
    unusual = {kind: order[1 + 3 * place] for place, kind in enumerate(GOOD)}
    for kind, row in unusual.items():
        path = Path(plan.manifest.locate(row))
        path.unlink()
        if kind == "variable rate":
            write_clip(path, 9, pts=[0, 1, 3, 4, 9, 10, 11, 20, 21], **X264)
        elif kind == "turned":
            write_clip(path, 9, rotation=90, **X264)
        else:
            write_clip(path.with_suffix(".mkv"), 9, **X264).rename(path)
    return copy, rows, unusual


@pytest.mark.long
def test_whatever_is_wrong_with_a_clip_no_rank_misses_a_step(broken):
    copy, rows, unusual = broken
    plan = plan_of(copy)
    steps, bad, used = [], {}, set()
    for rank in range(2):
        loader = build_loader(plan, Cursor(), rank, 2, 1, FAST)
        batches = list(loader)
        loader.close()
        steps.append(len(batches))
        for batch in batches:
            assert batch.video.shape == (4, 3, 8, 16, 16)
            assert 10e6 < batch.decoder_bytes < 1e9
            used |= set(batch.rows)
            for row, path, reason in batch.bad:
                assert path == plan.manifest.locate(row)
                bad[row] = reason
    assert steps == [7, 7]  # of 15 microbatches
    said = {kind: bad.get(row) for kind, row in rows.items()}
    assert not used & set(rows.values())
    assert not set(unusual.values()) & set(bad)
    for kind, reason in said.items():
        if reason is not None:  # its microbatch may be the 15th, which nobody trains on
            assert re.search(KINDS[kind], reason), (kind, reason)
    assert sum(reason is not None for reason in said.values()) >= len(KINDS) - 4


@pytest.mark.long
def test_a_clip_that_wants_too_much_memory_is_refused_and_the_process_goes_on(tmp_path):
    big = str(write_clip(tmp_path / "big.mp4", 3, 4096, 4096, **X264))
    small = str(write_clip(tmp_path / "small.mp4", 12, **X264))
    decoder = Decoder(clip_timeout_s=60, memory_bytes=80 << 20)
    window, shape = Window(0, 2, 1, 24, 32, 2), (3, 2, 24, 32)
    _, replies = decoder.decode([(small, window), (big, window), (small, window)], shape)
    assert [bool(reply.error) for reply in replies] == [False, True, False], replies
    assert re.search(r"dataset.worker_memory_mb|died", replies[1].error), replies[1].error
    assert max(reply.memory_bytes for reply in replies) < 200 << 20
    decoder.close()
    roomy = Decoder(clip_timeout_s=60)
    assert roomy.decode([(big, window)], shape)[1][0].error == ""
    roomy.close()


@pytest.mark.long
def test_shared_memory_is_that_of_a_few_clips_whatever_the_batch(tmp_path):
    path = str(write_clip(tmp_path / "a.mp4", 12, **X264))
    decoder, window = Decoder(clip_timeout_s=60), Window(2, 4, 1, 240, 320, 12)
    clip = 3 * 4 * 240 * 320
    pixels, replies = decoder.decode([(path, window)] * 40, (3, 4, 240, 320))
    assert not any(reply.error for reply in replies)
    assert (pixels == pixels[0]).all()
    assert os.fstat(decoder._memory).st_size < 6 * clip
    decoder.close()
