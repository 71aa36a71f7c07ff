"""Faults of disks, checkpoints and data."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.clusterctl.launch.harness import read_lines
from tests.faults.cases.ranks import decoders
from tests.faults.fault import fault
from tests.faults.proof import step_of
from tests.faults.rig import CLIPS, Round, kill
from tests.faults.setting import Setting
from trainer.runlog import telemetry


def newest(one: Round) -> Path:
    return max(one.checkpoints, key=lambda path: step_of(path.name))


def told(one: Round, name: str) -> list[int]:
    """Steps of the trainer's events of this name."""
    found = telemetry.read(one.run_dir)
    return [e.step or 0 for e in found if isinstance(e, telemetry.Event) and e.name == name]


def saved_later(one: Round) -> Iterable[str]:
    failed, saved = told(one, "save-failed"), told(one, "checkpoint")
    if not any(step > max(failed) for step in saved):
        yield f"saves failed at steps {failed}, and succeeded at {saved}"


@fault(
    "F12",
    "disk full in a save, room again later",
    setting=Setting(outputs_mb=200),
    check=saved_later,
)
def full_disk(one: Round) -> None:
    one.until_step(23)
    one.strike()
    filler = one.outputs / "filler"
    with filler.open("wb", buffering=0) as file:  # telemetry still has room
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(one.outputs).free - (1 << 20))
    try:
        one.until("a save fails", lambda: bool(told(one, "save-failed")), 40)
    finally:
        filler.unlink()


@fault("F13", "rank killed in a save", "signal-9", detected_s=2.0)
def killed_in_save(one: Round) -> None:
    one.until_step(18)
    known = {path.name for path in one.run_dir.iterdir()}
    one.until("a save begins", lambda: _begun(one, known))
    one.strike()
    kill([one.ranks[0]], signal.SIGKILL)


def _begun(one: Round, known: set[str]) -> bool:
    return any(path.name not in known and path.is_dir() for path in one.run_dir.iterdir())


def fell_back(one: Round) -> Iterable[str]:
    began = [event["data"]["from"] for event in one.events("attempt")]
    if step_of(began[-1]) != 10:
        yield f"the last attempt began from {began[-1]}"


@fault(
    "F14", "newest checkpoint damaged, then a rank killed", "signal-9, checkpoint-invalid",
    recovered_s=40.0, check=fell_back,
)  # fmt: skip
def damaged_checkpoint(one: Round) -> None:
    one.until_step(23)
    one.until("a checkpoint of step 20", lambda: step_of(newest(one).name) == 20)
    kinds = sorted(path for path in newest(one).rglob("*") if path.is_file())
    victim = max(kinds, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    victim.write_bytes(data)
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)


def refused(one: Round) -> set[str]:
    """The clips that the run has refused."""
    return {Path(line["path"]).name for line in read_lines(one.run_dir / "bad_samples.jsonl")}


def one_is_refused(one: Round) -> Iterable[str]:
    if len(refused(one)) != 1:
        yield f"{len(refused(one))} clips were refused"


@fault("F3", "loader stopped", refuses_clips=True, check=one_is_refused)
def stopped_loader(one: Round) -> None:
    one.until_step(23)
    found = decoders(one, 1)
    one.strike()
    kill(found, signal.SIGSTOP)
    if not found:
        one.notes.append("rank 1 had no process that reads clips")


@fault("F3-clip", "clip that never ends", refuses_clips=True, check=one_is_refused)
def endless_clip(one: Round) -> None:
    one.until_step(10)
    clip = sorted(one.data.glob("**/*.mp4"))[0]
    one.strike()
    clip.unlink()
    os.mkfifo(clip)


def four_are_refused(one: Round) -> Iterable[str]:
    if len(refused(one)) != 4:
        yield f"{len(refused(one))} clips were refused"


@fault("F15", "corrupt clips", refuses_clips=True, check=four_are_refused)
def corrupt_clips(one: Round) -> None:
    clips = sorted(one.data.glob("**/*.mp4"))
    one.until_step(10)
    one.strike()
    clips[0].write_bytes(b"")
    clips[1].write_bytes(clips[1].read_bytes()[:200])
    clips[2].write_text("no video")
    clips[3].unlink()


def difference_is_said(one: Round) -> Iterable[str]:
    if f"{CLIPS} rows then, {CLIPS - 8} now" not in one.said():
        yield "the difference is not said"


@fault(
    "F34", "manifest changed, then a rank killed", r"signal-9(, refused){2}",
    exit_code=93, is_same=False, check=difference_is_said,
)  # fmt: skip
def changed_manifest(one: Round) -> None:
    one.until_step(23)
    lines = one.csv.read_text().splitlines()
    one.csv.write_text("\n".join([lines[0], *lines[9:]]) + "\n")
    one.strike()
    kill([one.ranks[1]], signal.SIGKILL)


HANGING = Setting(clips_hang=True)


def stall(one: Round, seconds: float) -> None:
    """No read of a clip is answered for so long."""
    with one.mount.hanging():
        one.strike()
        begun = time.monotonic()
        one.until(f"{seconds:g} s", lambda: time.monotonic() > begun + seconds)


@fault("F22-short", "clips cannot be read for 2 s", setting=HANGING)
def short_stall(one: Round) -> None:
    one.until_step(23)
    stall(one, 2.0)


@fault("F22-error", "clips cannot be read for 2 s: their server gives errors", setting=HANGING)
def failing_server(one: Round) -> None:
    one.until_step(23)
    with one.mount.failing(errno.ESTALE):
        one.strike()
        begun = time.monotonic()
        one.until("a read fails", lambda: one.mount.failed.acquire(blocking=False))
        one.until("2 s", lambda: time.monotonic() > begun + 2.0)


@fault(
    "F22",
    "clips cannot be read for 30 s",
    r"hang-\S+(, \S+)*",
    recovered_s=90.0,
    refuses_clips=True,
    setting=HANGING,
)
def long_stall(one: Round) -> None:
    one.until_step(23)
    stall(one, 30.0)
