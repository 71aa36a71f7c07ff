"""Encoding goes on after any kill with the same bytes, on any number of ranks, and adds what is missing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.ports import free_port
from tests.trainer.data.features.feature_caches import (
    FRAMES,
    Place,
    make_place,
    open_cache,
    shard_bytes,
    write_table,
)
from tests.trainer.ranks import environment
from trainer.config.load import Config
from trainer.data.__main__ import main
from trainer.data.features import encode_job
from trainer.data.features import files as features_files
from trainer.data.features.cache import Features
from trainer.data.features.encode_plan import Options, work_of
from trainer.data.features.files import FeaturesError, sweep
from trainer.data.manifest.manifest import Manifest
from trainer.data.video import decode
from trainer.data.video.decode import Decoder
from trainer.runlog.atomic_file import part_of


class Killed(BaseException):
    """As SIGKILL: nothing of the program runs after it but what only lets go of things."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("encode"), identity=True)


@pytest.fixture(scope="module")
def _decoder() -> Any:
    decoder = Decoder()
    yield decoder
    decoder.close()


@pytest.fixture(autouse=True)
def _one_decoder(monkeypatch: pytest.MonkeyPatch, _decoder: Decoder) -> None:
    """One real decoding process for all runs, which keeps what it gave: runs are many, clips few."""
    kept: dict[Any, Any] = {}

    class Borrowed:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def decode(self, clips: Any, shape: Any) -> Any:
            name = (Path(clips[0][0]).read_bytes(), clips[0][1])
            if name not in kept:
                pixels, replies = _decoder.decode(clips, shape)
                kept[name] = np.array(pixels), replies
            return kept[name]

        def abort(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(decode, "Decoder", Borrowed)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power cut here, and disks may be busy


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip or two in each shard, so that there are many."""
    plain = encode_job.inputs_of

    def inputs(*arguments: Any) -> dict[str, Any]:
        return {**plain(*arguments), "shard_bytes": 200_000}

    monkeypatch.setattr(encode_job, "inputs_of", inputs)


def _encoded(config: Config, manifest: Manifest, out: Path, options: Options) -> None:
    """What the verb does, without reading config and manifest anew each time."""
    if (job := encode_job.prepare(config, manifest, out, options)) is not None:
        encode_job.work(config, manifest, out, job, options, 0, 1)
        assert encode_job.finish(out, job)


def attempt(run: Callable[[], None], points: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run, killed at the `points`-th moment at which a file is made to last; whether it got to its end."""
    left = points

    def point() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    real_replace, real_unlink = Path.replace, Path.unlink

    def sync(_: Any) -> None:
        point()

    def replace(self: Path, target: Path) -> Path:
        point()
        done = real_replace(self, target)
        point()
        return done

    def unlink(self: Path, missing_ok: bool = False) -> None:
        point()
        real_unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(features_files, "sync", sync)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        patch.setattr(os, "fsync", sync)
        try:
            run()
        except Killed:
            return False
    return True


def wiped(out: Path) -> Path:
    """Without all but the text encoder, which takes long to make."""
    for path in out.iterdir():
        if path.is_file():
            path.unlink()
    return out


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("each", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    out, config, manifest = tmp_path / "cache", place.config(), place.manifest()

    def run() -> None:
        _encoded(config, manifest, out, Options("exact", "F32"))

    run()
    want, document = shard_bytes(out), (out / "features.json").read_bytes()
    assert len(want) > 4
    kills = 0
    while wiped(out) and not attempt(run, kills + 1, monkeypatch):
        kills += each
        if (out / "features.json").exists():  # what is named is whole at every moment
            open_cache(out)
        attempt(run, 5, monkeypatch)  # killed once more, then left alone
        run()
        assert shard_bytes(out) == want, f"other bytes after a kill at point {kills}"
        assert (out / "features.json").read_bytes() == document
        assert not (out / "job.json").exists()
    assert kills > 25
    assert main(["features", str(out), "--check", "-q"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_ranks_make_the_shards_of_one_and_the_last_one_the_index(
    place: Place, tmp_path: Path
) -> None:
    alone, shared, other = tmp_path / "alone", tmp_path / "shared", tmp_path / "other"
    assert place.encode(alone) == 0
    config, manifest = place.config(), place.manifest()
    options = Options("exact", "F32")
    for out, turns in ((shared, [(2, 3), (0, 3), (1, 3)]), (other, [(0, 2), (4, 5), (1, 2)])):
        shutil.copytree(alone / "text_encoder", out / "text_encoder")
        job = encode_job.prepare(config, manifest, out, options)
        assert job is not None
        for number, (rank, world) in enumerate(turns):
            encode_job.work(config, manifest, out, job, options, rank, world)
            assert encode_job.finish(out, job) == (number == len(turns) - 1)
        assert shard_bytes(out) == shard_bytes(alone)
        assert encode_job.prepare(config, manifest, out, options) is None


@pytest.mark.long
def test_more_clips_and_other_buckets_are_added_and_nothing_is_made_twice(
    place: Place, tmp_path: Path
) -> None:
    out, table = tmp_path / "cache", tmp_path / "table.csv"
    rows = [
        (str(place.folder / f"{n}.mp4"), f"clip number {n % 4}", f, 32, 40, 24)
        for n, f in enumerate(FRAMES)
    ]
    write_table(table, rows[:3])
    assert place.encode(out, "--data-path", str(table)) == 0
    before = shard_bytes(out)
    assert place.encode(out, "--data-path", str(table)) == 0
    assert shard_bytes(out) == before  # nothing to do
    write_table(table, [rows[4], *rows])
    assert place.encode(out, "--data-path", str(table)) == 0
    after = shard_bytes(out)
    assert {name: after[name] for name in before if "index" not in name} == {
        name: data for name, data in before.items() if "index" not in name
    }
    assert len(open_cache(out).clips) == 2 * 7  # two sizes each; one path stands twice


@pytest.mark.long
@pytest.mark.usefixtures("small_shards")
def test_a_job_that_was_left_for_other_buckets_keeps_what_it_made(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "cache"
    assert not attempt(lambda: _encoded(place.config(), place.manifest(), out, Options("exact", "F32")), 30, monkeypatch)  # fmt: skip
    made = {name for name in shard_bytes(out) if "latents-01" in name}
    assert made
    assert place.encode(out, "--bucket-config.32px", "{17: (1.0, 1)}") == 0
    names = set(shard_bytes(out))
    assert made < names
    assert any("latents-02" in name for name in names)
    keys = open_cache(out).clips.columns["key"].tolist()
    assert len(keys) == len(set(keys))


@pytest.mark.long
def test_other_weights_settings_and_storage_are_refused_in_a_sentence(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cache"
    assert place.encode(out) == 0
    capsys.readouterr()
    for words, said in (
        (["--vae.channels", "3"], "vae.channels 1, this run has 3"),
        (["--dataset.resize", "area"], "dataset.resize bilinear, this run has area"),
        (["--dtype", "bf16"], "dtype fp32, this run has bf16"),
        (["--latent-dtype", "fp16"], "--latent-dtype F32, not F16"),
        (["--max-frames", "40"], "--max-frames None, not 40"),
    ):
        assert place.encode(out, *words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "hint: " in error
    assert place.encode(out, "--vae.channels", "3", "--force") == 0
    assert Features(out).grid.channels == 3


@pytest.mark.long
def test_wrong_use_is_said_before_anything_is_made(
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "cache"
    for words, said in (
        (["--sample"], "identity has none"),
        (["--max-frames", "20"], "below a bucket's 34 frames"),
        (["--dataset.features", "x"], "leave it out"),
        (["--no-such-key", "1"], "there is no key no_such_key"),
    ):
        assert place.encode(out, *words) == 2, words
        assert said in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert place.encode(out) == 2
    assert "torchrun" in capsys.readouterr().err
    assert not (out / "job.json").exists()


@pytest.mark.long
def test_keys_of_the_config_may_stand_anywhere(place: Place, tmp_path: Path) -> None:
    words = ["encode", "--data-path", str(place.table), "--max-frames=40", "--dataset.resize=area"]
    out = str(tmp_path / "cache")
    assert main([*words, str(place.config_file), "--threads", "1", out, "-q"]) == 0
    key = Features(tmp_path / "cache").key
    assert (key["latents"]["max_frames"], key["frames"]["resize"]) == (40, "area")


@pytest.mark.long
def test_clips_of_another_size_than_the_manifest_says_are_told_once(
    place: Place, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Clips of several buckets, and a still."""
    rows = [(f"{place.folder}/{n}.mp4", "x", frames, 64, 80, 24) for n, frames in enumerate(FRAMES)]
    Image.new("RGB", (40, 32)).save(tmp_path / "a.png")
    right = (f"{place.folder}/2.mp4", "x", FRAMES[2], 32, 40, 24)
    write_table(tmp_path / "m.csv", [rows[0], right, (f"{tmp_path}/a.png", "x", 1, 48, 40, "")])
    words = ["--data-path", str(tmp_path / "m.csv"), "--workers", "1"]
    words += ["--bucket-config", '{"16px": {17: (1.0, 1), 34: (1.0, 1), 1: (1.0, 1)}}']
    assert place.encode(tmp_path / "cache", *words) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert sorted(line.partition(": it is ")[0].rpartition("/")[2] for line in said) == [
        "0.mp4",
        "a.png",
    ]
    for line in said:
        assert "it is 32x40 (height x width), the manifest says " in line
        assert "; it is encoded, scaled and cut to the bucket of the manifest's size (" in line


def test_dry_run_says_how_much_and_writes_nothing(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.encode(tmp_path / "cache", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "16x16: " in said
    assert "in all up to" in said
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_what_is_predicted_is_what_is_written(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    options = Options("exact", "F32")
    job = encode_job.prepare(place.config(), place.manifest(), out, options)
    assert job is not None
    work = work_of(place.config(), place.manifest(), out, job)
    assert place.encode(out) == 0
    columns = open_cache(out).clips.columns
    stored = int((columns["count"] * columns["height"] * columns["width"]).sum()) * 4
    assert int(work.sizes.sum()) == stored


def test_too_small_a_disk_is_said_before_the_work(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr(encode_job.shutil, "disk_usage", lambda _: Full)
    assert place.encode(tmp_path / "cache") == 2
    assert "KiB are needed" in capsys.readouterr().err


@pytest.mark.long
def test_a_clip_that_was_mended_is_taken_with_retry_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(tmp_path, identity=True)
    clip, out = tmp_path / "2.mp4", tmp_path / "cache"
    whole = clip.read_bytes()
    clip.write_bytes(whole[: len(whole) // 2])
    assert place.encode(out, "--max-bad", "0") == 2
    assert "0 are allowed" in capsys.readouterr().err
    assert place.encode(out) == 1  # goes on: the shards are there
    assert len(Features(out).bad) == 2
    clip.write_bytes(whole)
    assert place.encode(out) == 1  # known to be bad
    assert place.encode(out, "--retry-bad") == 0
    assert Features(out).bad == {}


@pytest.mark.long
def test_a_shard_that_was_lost_is_made_again(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cache"
    assert place.encode(out) == 0
    path = next(out.glob("latents-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FeaturesError, match="is damaged"):
        open_cache(out)
    assert place.encode(out) == 0
    assert "is missing or damaged; re-encoding it" in capsys.readouterr().err
    open_cache(out)
    index = next(out.glob("index-*"))
    index.unlink()
    assert place.encode(out) == 0
    open_cache(out)
    (out / "features.json").unlink()  # whose are the shards?
    assert place.encode(out) == 2
    assert "shards that neither features.json nor job.json lists" in capsys.readouterr().err


def test_what_killed_processes_leave_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    gone = tmp_path / ".a.safetensors.0123abcd.part"
    gone.touch()
    with part_of(tmp_path / "b.safetensors") as part:
        sweep(tmp_path)
        assert [path.exists() for path in (gone, part)] == [False, True]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_processes_killed_at_random_moments_make_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL, one or two ranks in turn, each time gone on with by the other number of ranks."""
    from trainer.data.digits import main as render

    render(["--out", str(tmp_path / "digits"), "--clips", "600", "--seed", "2"])
    words = ["demo", "--data-path", str(tmp_path / "digits/digits.csv"), "--shard-mb", "1", "-q"]
    alone = tmp_path / "alone"
    assert all(code == 0 for code in _ended(_ranks([*words, str(alone)], 1), 1800))
    want = shard_bytes(alone)
    chance, kills = random.Random(4), 0
    for number in range(8):
        out = tmp_path / f"cache{number}"
        for shards in sorted(chance.sample(range(len(want)), 2)):
            processes = _ranks([*words, str(out)], 1 + (kills + number) % 2)
            deadline = time.monotonic() + 1800
            # As soon as so many shards are there; what the ranks are at then is chance.
            while len(list(out.glob("*.safetensors"))) < shards and time.monotonic() < deadline:
                if all(process.poll() is not None for process in processes):
                    break
                time.sleep(0.01)
            kills += any(process.poll() is None for process in processes)
            for process in processes:
                process.kill()
                process.wait(30)
        assert all(code == 0 for code in _ended(_ranks([*words, str(out)], 1 + number % 2), 1800))
        assert shard_bytes(out) == want, f"other bytes after {kills} kills"
        shutil.rmtree(out)
    print(f"{kills} kills")
    assert kills


def _ranks(words: list[str], world: int) -> list[subprocess.Popen[bytes]]:
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "trainer.data", "encode", *words],
            env=environment(rank, world, port),
            stdout=subprocess.DEVNULL,
        )
        for rank in range(world)
    ]


def _ended(processes: list[subprocess.Popen[bytes]], limit_s: float) -> list[int]:
    """Exit codes; after the limit all are killed. Raises TimeoutExpired then."""
    deadline = time.monotonic() + limit_s
    try:
        return [p.wait(max(0.1, deadline - time.monotonic())) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
