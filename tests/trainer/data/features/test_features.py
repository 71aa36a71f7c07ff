"""What training reads from a feature cache is what encoding on the fly gives, or a named refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.trainer.data.features.feature_caches import (
    FRAMES,
    Place,
    differ,
    make_place,
    open_cache,
    shard_bytes,
    write_table,
)
from tests.trainer.data.rows import random_manifest
from trainer.components import build_vae
from trainer.config.keys import DatasetConfig
from trainer.data.__main__ import main
from trainer.data.features.cache import Features
from trainer.data.features.files import FeaturesError
from trainer.data.features.key import Hashes
from trainer.data.features.units import Grid, find_units, segments
from trainer.data.loader.build_loader import build_loader, latents_of, read_batch
from trainer.data.loader.task import Clip, Task, make_task
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, content_ids
from trainer.data.video.decode import Decoder, Window
from trainer.errors import TooManyBadSamples
from trainer.models.text import TextEncoder
from trainer.models.vae.interface import IdentityVAE


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="module")
def cache(place: Place) -> Path:
    """Posteriors in fp32."""
    out = place.folder / "exactly"
    assert place.encode(out, "--latent-dtype", "fp32", "--shard-mb", "1") == 0
    return out


def tasks(place: Place, epochs: int = 3) -> list[Task]:
    plan = place.plan()
    return [make_task(plan, e, i) for e in range(epochs) for i in range(len(plan.epoch(e)))]


def windows_anew(task: Task, grid: Grid) -> torch.Tensor:
    """uint8 pixels [B, 3, T, H, W] of a task's clips, their windows moved onto the grid."""
    bucket, clips = task.bucket, []
    decoder = Decoder()
    for clip in task.clips:
        step = grid.step(bucket.frames)
        window = Window(
            clip.start // step * step, bucket.frames, 1, bucket.height, bucket.width, clip.expected
        )
        shape = (3, bucket.frames, bucket.height, bucket.width)
        pixels, replies = decoder.decode([(clip.path, window)], shape)
        assert not replies[0].error
        clips.append(torch.from_numpy(np.array(pixels[0])))
    decoder.close()
    return torch.stack(clips)


@pytest.mark.long
def test_a_cached_window_is_the_posterior_of_the_window_encoded_on_its_own(
    place: Place, cache: Path
) -> None:
    """Measured on CPU in fp32: equal to 1e-6 (convolutions over other batches round differently)."""
    vae = build_vae(place.config().vae)
    features = open_cache(cache)
    shards, ids = features.shards(), content_ids(place.manifest())
    seen = set()
    for task in tasks(place):
        kind = task.bucket.frames, task.bucket.resolution
        if kind in seen:
            continue
        batch = read_batch(task, features, shards, ids)
        video = windows_anew(task, features.grid).float() / 127.5 - 1
        mean, logvar = vae.encode_posterior(video)
        stored = batch.latents
        assert stored.dtype == torch.float32
        assert stored[:, 0].shape == mean.shape
        assert differ(stored[:, 0], mean) < 2e-6
        assert differ(stored[:, 1], logvar) < 2e-5
        torch.manual_seed(5)
        drawn = latents_of(stored)
        torch.manual_seed(5)
        noise = torch.randn(mean.shape)
        frames = torch.zeros(video.shape[0] * video.shape[2], 4, *mean.shape[3:])
        # the same noise: the VAE's own sampling, at the mean of each frame
        assert differ(drawn, vae.encode(video, noises=(frames, noise))) < 1e-5
        seen.add(kind)
    assert {17, 20, 34} == {frames for frames, _ in seen}
    shards.close()


def test_captions_are_the_encoders_up_to_padding(place: Place, cache: Path) -> None:
    features = open_cache(cache)
    shards = features.shards()
    encoder = TextEncoder.from_folder(cache / "text_encoder", 8)
    texts = list(place.manifest().texts)
    y, mask = encoder.encode(texts)
    for row, text in enumerate(texts):
        stored = shards.text(text)
        assert stored is not None
        assert len(stored) == int(mask[row].sum())
        assert differ(stored, y[row, 0, : len(stored)]) < 1e-5
    shards.close()


@pytest.mark.long
def test_half_precision_is_as_near_as_it_says(place: Place, cache: Path) -> None:
    out = place.folder / "half"
    assert place.encode(out) == 0
    exact, half = open_cache(cache), open_cache(out)
    ids = content_ids(place.manifest())
    for task in tasks(place, 1):
        one = read_batch(task, exact, exact.shards(), ids).latents
        two = read_batch(task, half, half.shards(), ids).latents
        assert two.dtype == torch.float16
        assert bool(((one - two).abs() <= 2**-11 * one.abs() + 1e-7).all())


@pytest.mark.long
def test_a_sample_is_one_draw_of_the_whole_posterior(place: Place, cache: Path) -> None:
    out, again = place.folder / "sample", place.folder / "sample2"
    for folder in (out, again):
        assert place.encode(folder, "--sample", "--latent-dtype", "fp32") == 0
    assert shard_bytes(out) == shard_bytes(again)
    sampled, exact = open_cache(out), open_cache(cache)
    ids = content_ids(place.manifest())
    scores = []
    for task in tasks(place, 1):
        one = read_batch(task, sampled, sampled.shards(), ids).latents
        two = read_batch(task, exact, exact.shards(), ids).latents
        assert one.shape[1] == 1
        assert torch.equal(latents_of(one), one[:, 0])
        scores.append(((one[:, 0] - two[:, 0]) / (0.5 * two[:, 1]).exp()).flatten())
    spread = torch.cat(scores)
    assert abs(float(spread.mean())) < 0.2
    assert 0.8 < float(spread.std()) < 1.3  # noise of the frames widens it a little


@pytest.mark.long
def test_batches_of_pixels_are_those_of_the_loader_bit_by_bit(tmp_path: Path) -> None:
    """Every frame is a chunk where pixels are the latents, so windows do not move either."""
    place = make_place(tmp_path, identity=True)
    out = tmp_path / "cache"
    assert place.encode(out) == 0
    plan, options = place.plan(), DatasetConfig()
    plain = build_loader(plan, Cursor(), 0, 1, 1, options)
    cached = build_loader(plan, Cursor(), 0, 1, 2, options, features=open_cache(out))
    vae, count = IdentityVAE(1), 0
    for _ in range(3):
        for one, two in zip(plain, cached, strict=True):
            for name in ("rows", "text", "microbatch", "bucket", "bad"):
                assert getattr(one, name) == getattr(two, name)
            for name in ("fps", "height", "width", "num_frames"):
                assert torch.equal(getattr(one, name), getattr(two, name))
            latent = vae.encode(one.video.float() / 127.5 - 1)
            assert torch.equal(latents_of(two.latents), latent)
            assert plain.cursor == cached.cursor
            count += 1
    plain.close()
    cached.close()
    assert count >= 6


@pytest.mark.long
def test_what_training_may_want_is_exactly_what_some_epoch_assigns() -> None:
    config = {
        "360p": {51: (0.5, 2), 102: ((0.7, 0.4), 2), 1: (1.0, 2)},
        "240p": {51: ((1.0, 0.5), 2), 204: ((0.0, 1.0), 2), 33: (1.0, 1)},
        "144p": {17: (0.9, 3)},
    }
    manifest = random_manifest(400)
    for semantics in ("open-sora-1.2", "open-sora-2"):
        buckets = Buckets.parse(config, semantics)
        rows, cells = buckets.reachable(manifest)
        possible = set(zip(rows.tolist(), cells.tolist(), strict=True))
        assert len(possible) == len(rows)
        found = set()
        for epoch in range(80):
            chosen = buckets.assign(manifest, 1, epoch)
            found |= {(row, int(cell)) for row, cell in enumerate(chosen) if cell >= 0}
        assert found == possible


def test_units_name_every_size_once_with_all_lengths_of_chunks() -> None:
    grid = Grid(17, 4, 8, 4)
    buckets = Buckets.parse({"360p": {51: (1.0, 2), 60: (0.5, 2)}, "240p": {33: (1.0, 2)}})
    units = find_units(random_manifest(50), buckets, 1, grid)
    names = list(zip(units.rows.tolist(), units.height.tolist(), units.width.tolist(), strict=True))
    assert len(names) == len(set(names))
    assert units.lengths == (9, 16, 17)
    for unit in range(len(units)):
        assert 17 in units.wanted(unit)
    assert grid.latent_size((60, 360, 640)) == (18, 45, 80)


@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_segments_hold_every_chunk_whole_and_once(limit: int) -> None:
    grid = Grid(17, 4, 8, 4)
    seen: dict[int, list[int]] = {17: [], 3: []}
    for lengths, first, stop in segments(grid, [3, 17], 62, 1, limit):
        for length in lengths:
            seen[length] += [first // 17 + n for n in range(grid.count(length, stop - first))]
    assert seen == {17: [0, 1, 2], 3: [0, 1, 2, 3]}


@pytest.mark.long
def test_a_window_beyond_the_frames_that_are_there_is_counted_around(place: Place) -> None:
    grid = Grid(17, 4, 8, 4)
    assert [grid.window(start, 1, 34, 70) for start in (0, 16, 17, 36, 51, 68)] == [
        0,
        0,
        1,
        2,
        0,
        1,
    ]
    out = place.folder / "short"
    assert place.encode(out, "--max-frames", "40") == 0
    features = open_cache(out)
    ids = content_ids(place.manifest())
    for task in tasks(place, 1):
        read_batch(task, features, features.shards(), ids)
    assert int(features.clips.columns["frames"].max()) == 40


def test_shards_are_plain_safetensors(cache: Path) -> None:
    path = next(cache.glob("latents-*.safetensors"))
    with safe_open(path, framework="pt") as file:
        entries = [name for name in list(file.keys()) if not name.startswith("index.")]
        assert len(file.get_tensor("index.key")) == len(entries) > 0
        assert file.get_tensor(entries[0]).ndim == 6


def test_a_rank_without_a_batch_has_one_of_zeros_to_end_its_step_with(
    place: Place, cache: Path
) -> None:
    features = open_cache(cache)
    loader = build_loader(place.plan(), Cursor(), 0, 1, 1, DatasetConfig(), features=features)
    empty, real = loader.stand_in(), next(iter(loader))
    loader.close()
    assert empty is not None
    assert empty.video is None
    assert real.video is None
    for name in ("latents", "y", "mask"):
        assert getattr(empty, name).shape[1:] == getattr(real, name).shape[1:]
    assert empty.bucket == real.bucket
    assert latents_of(empty.latents).shape[0] == 1


# --- refusals ---


def copied(cache: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cache, tmp_path / "copy"))


def read_all(folder: Path, place: Place) -> None:
    features = open_cache(folder)
    ids = content_ids(place.manifest())
    for task in tasks(place, 4):
        read_batch(task, features, features.shards(), ids)


@pytest.mark.long
def test_a_flipped_byte_is_refused_by_the_shards_name(
    place: Place, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(cache, tmp_path)
    for path in sorted(folder.glob("*.safetensors")):
        whole = path.read_bytes()
        for where in (len(whole) - 3, 40):
            path.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :])
            assert main(["features", str(folder), "--check", "-q"]) in (1, 2), path
            said = capsys.readouterr().err
            assert f"{path} is damaged" in said
            assert "Traceback" not in said
        path.write_bytes(whole)
    assert main(["features", str(folder), "--check", "-q"]) == 0
    path = max(folder.glob("latents-*.safetensors"), key=lambda p: p.stat().st_size)
    whole = bytearray(path.read_bytes())
    for where in range(len(whole) * 2 // 3, len(whole)):
        whole[where] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FeaturesError, match=f"{path.name} is damaged: bytes from"):
        read_all(folder, place)


def test_a_cut_or_missing_shard_is_refused_before_a_step(cache: Path, tmp_path: Path) -> None:
    folder = copied(cache, tmp_path)
    path = next(folder.glob("texts-*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        FeaturesError, match=rf"{path.name} is damaged: it has [\d,]+ bytes instead"
    ):
        Features(folder).check_files()
    path.unlink()
    with pytest.raises(FeaturesError, match=f"{path.name} is damaged: No such file"):
        Features(folder).check_files()


def test_an_unfinished_cache_and_none_at_all_are_told_apart(cache: Path, tmp_path: Path) -> None:
    folder = copied(cache, tmp_path)
    (folder / "features.json").unlink()
    with pytest.raises(FeaturesError, match="is not finished"):
        Features(folder)
    with pytest.raises(FeaturesError, match="there is no feature cache at"):
        Features(tmp_path / "none")


@pytest.mark.parametrize(
    "change",
    [
        {"shards": [["a", 1]]},
        {"key": {}},
        {"grid": {"chunk": 17}},
        {"bad": [{"id": "x"}]},
        {"job": None},
        {"schema": 9},
    ],
)
def test_an_edited_document_is_refused_in_a_sentence(
    cache: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    whole = json.loads((cache / "features.json").read_text())
    (tmp_path / "features.json").write_text(json.dumps({**whole, **change}))
    with pytest.raises(FeaturesError, match=r"features\.json is (damaged|of version 9)"):
        Features(tmp_path)
    (tmp_path / "features.json").write_text(json.dumps(whole)[:-9])
    with pytest.raises(FeaturesError, match=r"features\.json cannot be read"):
        Features(tmp_path)


@pytest.mark.long
def test_a_missing_clip_or_caption_is_named(place: Place, cache: Path, tmp_path: Path) -> None:
    features = open_cache(cache)
    buckets = Buckets.parse(place.config().bucket_config)
    features.check_rows(place.manifest(), buckets)
    rows = [(f"{n}.mp4", f"clip number {n % 4}", f, 32, 40, 24) for n, f in enumerate(FRAMES)]
    for changed, words in (
        ([*rows, ("new.mp4", "clip number 1", 60, 32, 40, 24)], "lacks 1 of 7 clips, first .*new.mp4 at"),
        ([*rows[:-1], (*rows[5][:2], 18, *rows[5][3:])], "5.mp4 at 16x.* with 18 frames .19 are there"),
        ([(rows[0][0], "another", *rows[0][2:]), *rows[1:]], "captions of 1 clips, first that of .*0.mp4"),
    ):  # fmt: skip
        write_table(place.folder / "other.csv", changed)
        other = place.config("--data-path", str(place.folder / "other.csv")).dataset.data_path
        from trainer.data.manifest.read import read_manifest

        with pytest.raises(FeaturesError, match=words) as caught:
            features.check_rows(read_manifest(str(other)), buckets)
        assert "trainer.data encode" in str(caught.value.hint)


def test_weights_that_are_hashed_on_a_slow_disk_hold_up_no_rank(tmp_path: Path) -> None:
    told: list[int] = []
    (tmp_path / "w").write_bytes(b"x")
    hashes = Hashes(lives=lambda: told.append(1))
    whole = hashes.of([tmp_path / "w"])
    assert told
    again = Hashes(hashes.seen, lives=lambda: told.append(2))
    assert again.of([tmp_path / "w"]) == whole
    assert 2 not in told  # not read again


@pytest.mark.long
def test_bucket_of_which_no_clip_was_encoded_takes_those_of_another(
    place: Place, cache: Path
) -> None:
    features, ids = open_cache(cache), content_ids(place.manifest())
    task = next(task for task in tasks(place) if task.bucket.height == 24)
    size = (task.bucket.height, task.bucket.width)
    features.bad.update({(clip_id, *size): "noise" for clip_id in ids.tolist()})
    batch = read_batch(task, features, features.shards(), ids)
    assert batch.microbatch == (task.epoch, task.index)
    assert batch.bucket.startswith("16px")
    assert len(batch.rows) == len(task.clips)
    assert {clip.reason for clip in batch.bad} == {"noise"}


@pytest.mark.long
def test_a_clip_that_could_not_be_encoded_is_replaced_by_the_plans_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(tmp_path, identity=True)
    (tmp_path / "1.mp4").write_bytes(b"no clip")
    out = tmp_path / "cache"
    assert place.encode(out) == 1
    assert "1.mp4 at " in capsys.readouterr().err
    features, ids = open_cache(out), content_ids(place.manifest())
    features.check_rows(place.manifest(), Buckets.parse(place.config().bucket_config))
    shards, replaced = features.shards(), 0
    for task in tasks(place, 4):
        if [clip.row for clip in task.clips] == [1]:
            continue
        batch = read_batch(task, features, shards, ids)
        assert len(batch.rows) == len(task.clips)
        assert 1 not in batch.rows
        if 1 in [clip.row for clip in task.clips]:
            assert batch.bad[0][:2] == (1, str(tmp_path / "1.mp4"))
            replaced += 1
    assert replaced
    only: Clip = next(c for task in tasks(place, 4) for c in task.clips if c.row == 1)
    task = next(t for t in tasks(place, 4) if only in t.clips)
    alone = Task(task.epoch, task.index, task.bucket, 1, task.resize, (only,), ())
    with pytest.raises(TooManyBadSamples, match=r"1\.mp4: "):
        read_batch(alone, features, shards, ids)
