"""Batches end to end: real clips, real workers, every way a clip or a process can fail."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from tests.trainer.data.video.test_decode import is_gone, wait_for
from trainer.config.keys import DatasetConfig
from trainer.data import digits
from trainer.data.loader import loader
from trainer.data.loader.build_loader import build_loader
from trainer.data.loader.loader import LoaderError, TooFewClips, Worker
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.errors import TooManyBadSamples

CONFIG = {"16px": {8: (1.0, 4)}}
FAST = DatasetConfig(clip_timeout_s=20, batch_timeout_s=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "set"
    digits.make(out, clips=42, seed=3)
    return out


@pytest.fixture
def broken(folder, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "set"))


def plan_of(folder: Path, config: dict = CONFIG, **options) -> DataPlan:
    return DataPlan(read_manifest(folder / "digits.csv"), Buckets.parse(config), 5, **options)


def epoch_of(plan, cursor=Cursor(), rank=0, world=1, workers=0, options=FAST) -> list[dict]:
    loader = build_loader(plan, cursor, rank, world, workers, options)
    try:
        return list(loader)
    finally:
        loader.close()


def test_a_signal_handler_that_takes_long_ends_no_limit(monkeypatch) -> None:
    """As a request to stop may on a busy node. SimpleQueue.get, before Python 3.13, then waits
    forever."""
    monkeypatch.setattr(loader, "longest_wait_s", lambda _: 0.5)
    gate = threading.Event()
    worker = Worker(FAST, "late", lambda *_, **__: gate.wait(30), lambda: None)
    # `take` looks every second
    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1.2))
    try:
        main = threading.get_ident()
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        worker.asked.put("batch")
        with pytest.raises(LoaderError, match="no batch within"):
            worker.take()
    finally:
        signal.signal(signal.SIGUSR1, before)
        gate.set()
        worker.close()


@pytest.mark.long
def test_batch_holds_what_the_model_needs(folder):
    plan = plan_of(folder)
    batches = epoch_of(plan)
    assert len(batches) == 10
    for index, batch in enumerate(batches):
        assert batch.video.dtype == torch.uint8
        assert batch.video.shape == (4, 3, 8, 16, 16)
        assert batch.bucket == "16px 8f 1.00"
        assert batch.bad == []
        assert batch.rows == plan.epoch(0)[index].rows.tolist()
        assert batch.text == [plan.manifest.texts[row] for row in batch.rows]
        for name, value in [("fps", 8), ("height", 16), ("width", 16), ("num_frames", 8)]:
            assert getattr(batch, name).dtype == torch.float32
            assert getattr(batch, name).tolist() == [value] * 4
        assert 0 < batch.decode_s < 5


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_the_batch_to_come_is_told_before_it_comes(folder, rank):
    loader = build_loader(plan_of(folder), Cursor(consumed=2), rank, 2, 0, FAST)
    told, given = [], []
    try:
        told.append(loader.coming())
        for batch in loader:
            given.append((batch.microbatch, batch.bucket))
            told.append(loader.coming())
    finally:
        loader.close()
    assert told.pop() is None  # the epoch is over
    assert [(place, bucket.name) for place, bucket in told] == given
    assert [index for (_, index), _ in given] == [2 + rank, 4 + rank, 6 + rank, 8 + rank]


@pytest.mark.long
def test_the_buckets_of_a_step_are_told_of_all_ranks(folder):
    config = {"16px": {4: (1.0, 2), 8: ((1.0, 0.5), 2)}}
    told, given = [], []
    for rank in (0, 1):
        loader = build_loader(plan_of(folder, config), Cursor(), rank, 2, 0, FAST, each=2)
        buckets = loader.plan.buckets.cells
        try:
            names = []
            for batch in loader:
                names.append(batch.bucket)
                if len(names) % 2 == 0:
                    step = [[buckets[cell].name for cell in row] for row in loader.cells_of_step()]
                    told.append(step)
                    assert step[rank] == names[-2:]
            given += names
        finally:
            loader.close()
    assert told[: len(told) // 2] == told[len(told) // 2 :]  # both ranks tell the same
    assert len(set(given)) > 1


@pytest.mark.long
@pytest.mark.parametrize(("resize", "error"), [("bilinear", 0.04), ("area", 0.001)])
def test_pixels_are_the_digit_that_the_caption_says(folder, resize, error):
    images, _ = digits.scans("train")
    made = digits.plan_clips(42, seed=3)
    for batch in epoch_of(plan_of(folder), options=replace(FAST, resize=resize)):
        for pixels, row in zip(batch.video, batch.rows, strict=True):
            scan, direction = made[row]
            want = torch.from_numpy(digits.draw(images[scan], direction, 8))
            assert (pixels[0] / 255 - want).abs().mean() < error


@pytest.mark.long
def test_ranks_share_the_microbatches_whatever_their_number_and_their_workers(folder):
    plan = plan_of(folder)
    alone = epoch_of(plan)
    three = [epoch_of(plan_of(folder), rank=rank, world=3, workers=rank) for rank in range(3)]
    assert [len(batches) for batches in three] == [3, 3, 3]
    for index, batch in enumerate(alone[:9]):
        other = three[index % 3][index // 3]
        assert other.rows == batch.rows
        assert torch.equal(other.video, batch.video)


@pytest.mark.long
def test_epochs_follow_each_other_and_any_position_continues_bit_equal(folder):
    plan = plan_of(folder)
    loader = build_loader(plan, Cursor(), 0, 1, 0, FAST)
    whole = [(batch.rows, batch.video.clone()) for _ in range(2) for batch in loader]
    assert loader.cursor == Cursor(2, 0)
    loader.close()
    assert len(whole) == 20
    for done in (0, 3, 9, 10, 14):
        again = build_loader(plan_of(folder), Cursor(done // 10, done % 10), 0, 1, 0, FAST)
        assert len(again) == 10 - done % 10
        rest = [(batch.rows, batch.video) for batch in again]
        again.close()
        assert again.cursor == Cursor(done // 10 + 1, 0)
        for (rows, pixels), (want_rows, want) in zip(rest, whole[done:], strict=False):
            assert rows == want_rows
            assert torch.equal(pixels, want)


@pytest.mark.long
def test_position_counts_batches_given_out_not_those_decoded_ahead(folder):
    loader = build_loader(plan_of(folder), Cursor(0, 2), 0, 2, 0, FAST)
    for given, _ in enumerate(loader, start=1):
        assert loader.cursor == Cursor(0, 2 + 2 * given)
        assert len(loader) == 4 - given
        if given == 2:
            break
    loader.close()
    assert [len(list(loader)), loader.cursor] == [2, Cursor(1, 0)]
    loader.close()


@pytest.mark.long
def test_windows_differ_by_epoch_but_not_by_run(folder):
    config = {"16px": {3: (1.0, 4)}}
    plan = plan_of(folder, config)
    first, again = epoch_of(plan), epoch_of(plan_of(folder, config))
    second = epoch_of(plan, Cursor(1, 0))
    assert all(torch.equal(a.video, b.video) for a, b in zip(first, again, strict=True))
    by_row = {row: clip for b in second for row, clip in zip(b.rows, b.video, strict=True)}
    same = [
        torch.equal(clip, by_row[row])
        for batch in first
        for row, clip in zip(batch.rows, batch.video, strict=True)
        if row in by_row
    ]
    assert 0.02 < sum(same) / len(same) < 0.6  # 6 possible starts


def damage(plan: DataPlan, row: int, kind: str) -> None:
    path = Path(plan.manifest.locate(row))
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "short":
        images, _ = digits.scans("train")
        digits.encode(path, digits.draw(images[0], "left", 5), 4)
    elif kind == "noise":
        path.write_bytes(os.urandom(3000))


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_bad_clips_are_replaced_by_the_next_of_their_bucket_and_reported(broken, workers):
    plan = plan_of(broken)
    order = plan.epoch(0).cell_orders[0].tolist()
    batch = plan.epoch(0)[0]
    at = batch.first
    kinds = {0: "missing", 2: "empty", 4: "fifo", 5: "short", 6: "noise"}
    for place, kind in kinds.items():
        damage(plan, order[(at + place) % len(order)], kind)
    first, second = epoch_of(plan, workers=workers), epoch_of(plan_of(broken), workers=workers)
    for one, two in zip(first, second, strict=True):
        assert one.rows == two.rows
        assert one.bad == two.bad
        assert torch.equal(one.video, two.video)
        assert one.video.shape[0] == 4
    # clips 0 and 2 of the batch are bad, so are the first ones asked to stand in
    turned = order[at:] + order[:at]
    assert first[0].rows == [turned[8], turned[1], turned[7], turned[3]]
    bad = {row: reason for row, _, reason in first[0].bad}
    assert list(bad) == [turned[place] for place in (0, 2, 4, 5, 6)]
    assert list(bad.values())[:3] == [
        "No such file or directory",
        "empty file",
        "not a regular file",
    ]
    assert "has 5 frames, the manifest says 9" in bad[turned[5]]
    assert first[0].bad[0][1] == plan.manifest.locate(turned[0])
    assert first[0].text == [plan.manifest.texts[row] for row in first[0].rows]


@pytest.mark.long
def test_microbatch_of_only_bad_clips_is_filled(broken):
    plan = plan_of(broken)
    rows = plan.epoch(0)[3].rows.tolist()
    for row in rows:
        damage(plan, row, "empty")
    batches = epoch_of(plan)
    assert [row for row, _, _ in batches[3].bad] == rows
    assert not set(batches[3].rows) & set(rows)
    assert len(batches) == 10


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_when_nothing_can_stand_in_the_run_stops_with_the_list(broken, workers):
    shutil.rmtree(broken / "clips")
    with pytest.raises(TooManyBadSamples, match=r"16px 8f 1.00 is left.*\n.*clips/.*No such file"):
        epoch_of(plan_of(broken), workers=workers)


def test_too_few_clips_for_one_step_says_so(folder):
    with pytest.raises(
        TooFewClips, match="epoch 0 has 10 microbatches, 11 ranks need 11"
    ) as caught:
        build_loader(plan_of(folder), Cursor(), 0, 11, 0, FAST)
    assert caught.value.exit_code == 2
    with pytest.raises(
        TooFewClips, match="epoch 3 has 6 microbatches left, 16 ranks need 16 for a step, and none"
    ):
        build_loader(plan_of(folder), Cursor(3, 4), 0, 16, 0, FAST)
    with pytest.raises(LoaderError, match="rank 2 of 2"):
        build_loader(plan_of(folder), Cursor(), 2, 2, 0, FAST)


def decoders_of(pid: int) -> list[psutil.Process]:
    return [
        p for p in psutil.Process(pid).children(recursive=True) if p.name().startswith("loader")
    ]


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_decoder_that_stops_or_dies_costs_one_clip_and_no_step(folder, fault):
    options = replace(FAST, clip_timeout_s=1)
    loader = build_loader(plan_of(folder), Cursor(), 0, 1, 2, options)
    batches = iter(loader)
    next(batches), next(batches)  # one of each worker: both run
    before = decoders_of(os.getpid())
    assert {process.name() for process in before} == {"loader 0.0", "loader 0.1"}
    for process in before:
        process.send_signal(fault)
    rest = list(batches)
    assert len(rest) == 8
    bad = [reason for batch in rest for _, _, reason in batch.bad]
    assert len(bad) <= 2
    assert all("no answer within 1 s" in reason or "died: signal 9" in reason for reason in bad)
    loader.close()
    wait_for(lambda: all(is_gone(process.pid) for process in before))
    assert not decoders_of(os.getpid())


@pytest.mark.long
def test_batch_that_takes_too_long_stops_the_run_with_the_list(folder):
    options = replace(FAST, clip_timeout_s=1.5, batch_timeout_s=1)
    loader = build_loader(plan_of(folder), Cursor(), 0, 1, 1, options)
    batches = iter(loader)
    next(batches)
    (process,) = decoders_of(os.getpid())
    process.suspend()
    began = time.monotonic()
    with pytest.raises(TooManyBadSamples, match=r"more than 1 s\n.*clips/\d+.mp4: no answer"):
        list(batches)
    assert time.monotonic() - began < 30
    assert not decoders_of(os.getpid())


def test_a_worker_that_ended_without_a_word_is_noticed_at_once(folder, monkeypatch):
    loader = build_loader(plan_of(folder), Cursor(), 0, 1, 1, FAST)
    monkeypatch.setattr(Worker, "_work", lambda self: None)
    began = time.monotonic()
    with pytest.raises(LoaderError, match="the thread that makes batches has ended"):
        next(iter(loader))
    assert time.monotonic() - began < 30  # not the longest wait, 220 s
    loader.close()


@pytest.mark.long
def test_closing_does_not_wait_for_a_late_clip(folder):
    loader = build_loader(plan_of(folder), Cursor(), 0, 1, 1, FAST)
    next(iter(loader))
    for process in decoders_of(os.getpid()):
        process.suspend()
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 10
    assert not decoders_of(os.getpid())
    assert len(list(loader)) == 9  # and it can go on where it was
    loader.close()


@pytest.mark.long
def test_decoding_that_cannot_work_at_all_is_no_clip_s_fault(folder, tmp_path, monkeypatch):
    (tmp_path / "av.py").write_text("raise ImportError('no libavcodec')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        LoaderError, match="rank 0: the decoding process does not start: no libavcodec"
    ):
        epoch_of(plan_of(folder))


RANK = """
import sys, time
import psutil
from trainer.data.plan.buckets import Buckets
from trainer.data.loader import loader
from trainer.data.loader.build_loader import build_loader
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.data_plan import Cursor, DataPlan
plan = DataPlan(read_manifest(sys.argv[1]), Buckets.parse({"16px": {8: (1.0, 4)}}), 5)
batches = iter(build_loader(plan, Cursor(), 3, 4, 2))
next(batches)
print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
if sys.argv[2] == "stay":
    time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", ["killed", "leaves"])
def test_no_process_outlives_a_rank(folder, end):
    what = "stay" if end == "killed" else "go"
    command = [sys.executable, "-c", RANK, str(folder / "digits.csv"), what]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in rank.stdout.readline().split()]
    assert len(pids) == 2
    if end == "killed":
        os.kill(pids[0], signal.SIGSTOP)  # it cannot see that its input ended
        rank.kill()
    assert rank.wait(timeout=30) == (-signal.SIGKILL if end == "killed" else 0)
    rank.stdout.close()
    wait_for(lambda: all(is_gone(pid) for pid in pids), 20)
