"""Storage that fails for a while costs a batch time and no clip; a bad clip costs no time."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.data.loader.test_loader import plan_of
from trainer.data import digits
from trainer.data.features import encode_work
from trainer.data.features.encode_work import Segment
from trainer.data.loader.microbatch import assemble
from trainer.data.loader.task import make_task
from trainer.data.video import outage
from trainer.data.video.decode import Decoder, Window
from trainer.data.video.decode_process import storage_fails
from trainer.data.video.decoder_pool import DecoderPool
from trainer.data.video.outage import Outage
from trainer.errors import TooManyBadSamples


class Watched(Decoder):
    """Counts its tries, and says when one has been made."""

    def decode(self, *args: Any, **options: Any) -> Any:
        try:
            return super().decode(*args, **options)
        finally:
            self.tries = getattr(self, "tries", 0) + 1
            self.tried.set()

    tried = threading.Event()


@pytest.fixture
def decoder() -> Iterator[Watched]:
    one = Watched(clip_timeout_s=20.0)
    one.tried = threading.Event()
    yield one
    one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    digits.make(tmp_path / "mount" / "set", clips=42, seed=3)
    return tmp_path / "mount" / "set"


def across_an_outage(mount: Path, decoder: Watched, read: Callable[[], Any]) -> Any:
    """What `read` gives that begins while the mount is not there, and has tried before it is."""
    moved, found = mount.with_name("moved"), list[Any]()
    decoder.tried.clear()
    mount.rename(moved)
    reading = threading.Thread(target=lambda: found.append(read()))
    reading.start()
    assert decoder.tried.wait(30)
    moved.rename(mount)
    reading.join(60)
    (one,) = found
    return one


@pytest.mark.long
def test_clips_of_a_mount_that_was_away_are_those_of_an_undisturbed_batch(
    folder: Path, decoder: Watched
) -> None:
    task = make_task(plan_of(folder), 0, 0)
    expected = assemble(task, decoder, 60.0)
    batch = across_an_outage(folder.parent, decoder, lambda: assemble(task, decoder, 60.0))
    assert batch.bad == []
    assert batch.rows == expected.rows
    np.testing.assert_array_equal(batch.video.numpy(), expected.video.numpy())
    np.testing.assert_array_equal(batch.fps.numpy(), expected.fps.numpy())


@pytest.mark.long
def test_clip_of_a_mount_that_was_away_is_encoded(folder: Path, decoder: Watched) -> None:
    clip = make_task(plan_of(folder), 0, 0).clips[0]
    segment = Segment(0, 0, clip.path, [8], 0, Window(0, 8, 1, 16, 16, clip.expected))
    pool = DecoderPool(1, 20.0, "encode")
    _, expected, reply = encode_work._decode(pool, segment, decoder)
    assert (reply.error, decoder.tries) == ("", 1)
    _, pixels, reply = across_an_outage(
        folder.parent, decoder, lambda: encode_work._decode(pool, segment, decoder)
    )
    assert reply.error == ""
    np.testing.assert_array_equal(pixels, expected)
    Path(clip.path).unlink()
    tries = decoder.tries
    assert encode_work._decode(pool, segment, decoder)[2].error == "No such file or directory"
    assert decoder.tries == tries + 2
    pool.close()


@pytest.mark.long
def test_clip_that_is_not_there_is_replaced_at_once(folder: Path, decoder: Watched) -> None:
    plan = plan_of(folder)
    task = make_task(plan, 0, 0)
    Path(task.clips[0].path).unlink()
    batch = assemble(task, decoder, 60.0)
    assert [row for row, _, _ in batch.bad] == [task.clips[0].row]
    assert decoder.tries == 2


@pytest.mark.long
def test_storage_that_stays_away_ends_the_batch_within_its_time(
    folder: Path, decoder: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "OUT_S", 0.5)
    task = make_task(plan_of(folder), 0, 0)
    assemble(task, decoder, 60.0)
    shutil.rmtree(folder.parent)
    with pytest.raises(TooManyBadSamples) as failed:
        assemble(task, decoder, 60.0)
    assert "No such file or directory" in str(failed.value)
    assert decoder.tries > 3


@pytest.mark.long
def test_path_that_is_wrong_from_the_start_is_told_at_once(folder: Path, decoder: Watched) -> None:
    task = make_task(plan_of(folder), 0, 0)
    shutil.rmtree(folder.parent)
    with pytest.raises(TooManyBadSamples, match="is left as a replacement"):
        assemble(task, decoder, 60.0)
    assert decoder.tries <= 1 + len(task.spares)


def test_file_that_fails_alone_is_given_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(outage.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(outage.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def waited(*was_read: bool, deadline: float = 1e9) -> float:
        now[0], one, reads = 100.0, Outage(deadline), iter(was_read)
        while one.lasts(next(reads, False)):
            pass
        return now[0] - 100.0

    assert 55.0 < waited() <= outage.OUT_S
    assert 2.0 < waited(True) <= outage.ALIVE_S
    assert 2.0 < waited(False, False, True) <= outage.ALIVE_S
    assert waited(deadline=110.0) <= 10.0


def test_errors_of_storage_are_told_from_those_of_a_file(tmp_path: Path) -> None:
    here, gone = str(tmp_path / "a.mp4"), str(tmp_path / "unmounted" / "a.mp4")
    for code in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT):
        assert storage_fails(code, here, False)
    for code in (None, errno.EACCES, errno.EINVAL, errno.ENOENT):
        assert not storage_fails(code, here, True)
    assert storage_fails(errno.ENOENT, gone, True)
    assert not storage_fails(errno.ENOENT, gone, False)
