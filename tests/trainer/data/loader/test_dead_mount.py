"""Clips on a file system that stops answering: what reads from it cannot even be killed."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.clusterctl.stacks.stalling_mount import GETATTR, LOOKUP, OPEN, READ
from tests.lab.clip_mount import ClipMount, why_no_fuse
from tests.trainer.data.loader.test_loader import plan_of
from tests.trainer.data.video.test_decode import is_gone, wait_for
from trainer.config.keys import DatasetConfig
from trainer.data import digits
from trainer.data.loader.build_loader import build_loader
from trainer.data.plan.data_plan import Cursor
from trainer.data.video import decode
from trainer.data.video.decode import Decoder, DecoderBroken, Window
from trainer.errors import TooManyBadSamples

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=f"no FUSE: {why_no_fuse()}")

OPTIONS = DatasetConfig(clip_timeout_s=3.0, batch_timeout_s=150)


@pytest.fixture
def mounted(tmp_path):
    """A data set whose clips with an even number lie on the mount."""
    folder = tmp_path / "set"
    digits.make(folder, clips=42, seed=3)
    far = tmp_path / "far"
    far.mkdir()
    for path in sorted((folder / "clips").iterdir())[::2]:
        shutil.move(path, far / path.name)
        path.symlink_to(tmp_path / "mnt" / path.name)
    with ClipMount(far, tmp_path / "mnt") as mount:
        yield folder, mount


def nobody_is_left() -> bool:
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith(("loader", "decode")) and not is_gone(process.pid):
                return False
        except psutil.NoSuchProcess:
            continue
    return True


def is_far(folder: Path, path: str) -> bool:
    return (folder / "clips" / Path(path).name).is_symlink()


@pytest.mark.long
@pytest.mark.parametrize(
    "opcode",
    [READ, *(pytest.param(code, marks=pytest.mark.slow) for code in (LOOKUP, OPEN, GETATTR))],
)
def test_clips_of_a_mount_that_hangs_are_replaced_and_the_run_goes_on(mounted, opcode):
    folder, mount = mounted
    plan = plan_of(folder)
    loader = build_loader(plan, Cursor(), 0, 1, 1, OPTIONS, prefetch_factor=1)
    batches = iter(loader)
    before = [next(batches), next(batches)]  # the second is asked for before the mount hangs
    during = []
    with mount.hanging(opcode):
        while not during or not any(is_far(folder, path) for _, path, _ in during[-1].bad):
            during.append(next(batches))
        assert mount.stalled.acquire(timeout=0)
    reasons = {reason for _, path, reason in during[-1].bad if is_far(folder, path)}
    assert reasons == {"no answer within 3 s"}
    after = list(batches)
    whole = [*before, *during, *after]
    assert len(whole) == 10
    assert {batch.video.shape[0] for batch in whole} == {4}
    rows = [row for batch in after[1:] for row in batch.rows]
    assert any(is_far(folder, plan.manifest.locate(row)) for row in rows)  # it answers again
    loader.close()
    wait_for(nobody_is_left, 30)  # those that could not be killed went, too


@pytest.mark.long
def test_a_process_that_cannot_be_killed_is_left_behind(mounted):
    folder, mount = mounted
    path = next(path for path in sorted((folder / "clips").iterdir()) if path.is_symlink())
    decoder, window = Decoder(clip_timeout_s=20), Window(0, 4, 1, 16, 16, 9)
    assert decoder.decode([(str(path), window)], (3, 4, 16, 16))[1][0].error == ""
    decoder.clip_timeout_s, stuck = 2, decoder.process.pid
    with mount.hanging():
        _, (reply,) = decoder.decode([(str(path), window)], (3, 4, 16, 16))
        assert "no answer within" in reply.error
        assert mount.stalled.acquire(timeout=0)
        assert not is_gone(stuck)
        decoder.close()  # returns
    decoder.clip_timeout_s = 20
    assert decoder.decode([(str(path), window)], (3, 4, 16, 16))[1][0].error == ""
    wait_for(lambda: is_gone(stuck), 30)
    decoder.close()


@pytest.mark.long
def test_many_processes_that_sleep_in_a_mount_are_said_to(mounted, monkeypatch):
    monkeypatch.setattr(decode, "_LEFT_BEHIND", 2)
    monkeypatch.setattr(decode, "_ENDS_S", 0.2)
    folder, mount = mounted
    path = next(path for path in sorted((folder / "clips").iterdir()) if path.is_symlink())
    decoder, window = Decoder(clip_timeout_s=2), Window(0, 4, 1, 16, 16, 9)
    with mount.hanging():
        asked = [(str(path), window)] * 20  # one too slow to come as far as the mount can be killed
        with pytest.raises(DecoderBroken, match="file system that does not answer") as caught:
            decoder.decode(asked, (3, 4, 16, 16))
        assert "check the mounts" in caught.value.hint
    decoder.close()
    wait_for(nobody_is_left, 30)


@pytest.mark.long
def test_a_mount_with_all_clips_stops_the_run_with_the_list_in_time(tmp_path):
    folder = tmp_path / "set"
    digits.make(folder, clips=12, seed=3)
    (folder / "clips").rename(tmp_path / "far")
    with ClipMount(tmp_path / "far", folder / "clips") as mount:
        options = replace(OPTIONS, clip_timeout_s=1, batch_timeout_s=3)
        loader = build_loader(plan_of(folder), Cursor(), 0, 1, 1, options)
        with mount.hanging():
            began = time.monotonic()
            with pytest.raises(TooManyBadSamples, match=r"more than 3 s\n .*no answer within 1 s"):
                list(loader)
            assert time.monotonic() - began < 60
        wait_for(nobody_is_left, 30)
