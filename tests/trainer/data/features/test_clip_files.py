"""Latents are of the files that a manifest names, not of others of equal names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from tests.rank_variables import OF_A_RANK
from tests.trainer.data.clips import write_clip
from tests.trainer.data.features.feature_caches import FRAMES, Place, make_place, open_cache
from trainer.components import Parts
from trainer.data.features import index
from trainer.data.features.files import LATENTS, FeaturesError
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import content_ids, plan_for
from trainer.validation.measure import validation_for
from trainer.validation.of_checkpoints import Ranks


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    """Two data sets with the same names, sizes and lengths; the second one is bright."""
    base = tmp_path_factory.mktemp("sets")
    cats, dogs = make_place(base / "cats", identity=True), make_place(base / "dogs", identity=True)
    for number, frames in enumerate(FRAMES):
        write_clip(dogs.folder / f"{number}.mp4", frames, 32, 40, picture=lambda _: 235)
    return cats, dogs


def notes_of(place: Place, out: Path) -> list[str]:
    """What a run says that trains from this cache."""
    buckets = Buckets.parse(place.config().bucket_config)
    return open_cache(out).check_clips(place.manifest(), buckets, 1, 30.0)


def brightness(place: Place, out: Path) -> float:
    found = open_cache(out).shards().window(int(content_ids(place.manifest())[0]), 16, 16, 17, 0, 1)
    assert found is not None
    return float(found[0].float().mean())


@pytest.mark.long
def test_another_data_set_of_the_same_names_is_encoded_itself(
    sets: tuple[Place, Place], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cats, dogs), out = sets, tmp_path / "cache"
    assert cats.encode(out) == 0
    dark = brightness(cats, out)
    assert notes_of(cats, out) == []
    told: list[int] = []
    buckets = Buckets.parse(cats.config().bucket_config)
    open_cache(out).check_clips(cats.manifest(), buckets, 1, 30.0, lives=lambda: told.append(1))
    assert len(told) == len(FRAMES)  # other ranks wait on
    with pytest.raises(FeaturesError, match=r"features of other files than 6 of the 6 clips"):
        notes_of(dogs, out)
    assert dogs.encode(out) == 0
    said = capsys.readouterr().err
    assert "6 clips are other files now and are encoded again, first" in said
    assert str(dogs.folder) in said
    assert brightness(dogs, out) > dark + 0.5
    assert notes_of(dogs, out) == []
    with pytest.raises(FeaturesError, match="features of other files"):
        notes_of(cats, out)


@pytest.mark.long
def test_validation_of_clips_of_the_same_names_is_refused(
    sets: tuple[Place, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder's clips count as others in every respect but the name under which features
    are kept: the latents of clips that are trained on would be measured."""
    for name in OF_A_RANK:  # which this process gets as the only rank
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (cats, dogs), out = sets, tmp_path / "cache"
    assert cats.encode(out) == 0
    wanted = ["--validation.every", "1", "--validation.data-path", str(dogs.table)]
    config, features = cats.config(*wanted), open_cache(out)
    plan = plan_for(config, cats.manifest())
    for is_compared in (True, False):
        with pytest.raises(FeaturesError, match=r"features of other files than \d of the \d clips"):
            validation_for(
                config, cast("Parts", None), Ranks(), plan, features, is_compared=is_compared
            )
    share = cats.config("--validation.every", "1", "--validation.share", "0.5")
    other = plan_for(share, dogs.manifest())  # a checkpoint that is evaluated later
    with pytest.raises(FeaturesError, match="features of other files"):
        validation_for(share, cast("Parts", None), Ranks(), other, features)


@pytest.mark.long
def test_a_data_set_that_moved_as_a_whole_keeps_its_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, out = make_place(tmp_path / "set", identity=True), tmp_path / "cache"
    assert place.encode(out) == 0
    before = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    for clip in place.folder.glob("*.mp4"):
        os.utime(clip, ns=(1, 1))  # as a copy has times of its own
    assert place.encode(out) == 0
    assert {path.name: path.read_bytes() for path in out.glob("*.safetensors")} == before
    assert notes_of(place, out) == []
    # One clip with other bytes of the same size.
    clip = place.folder / "2.mp4"
    data = bytearray(clip.read_bytes())
    data[-3] ^= 1
    clip.write_bytes(data)
    with pytest.raises(FeaturesError, match=r"1 of the 6 clips compared, first .*2\.mp4"):
        notes_of(place, out)
    clip.unlink()  # training needs no clips: it says what could not be compared
    (note,) = notes_of(place, out)
    assert "1 of 6 clips could not be compared with their features" in note
    assert "No such file or directory" in note
    capsys.readouterr()


@pytest.mark.long
def test_latents_from_before_are_read_and_said_to_be_unknown(
    sets: tuple[Place, Place],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cats, out = sets[0], tmp_path / "cache"
    with monkeypatch.context() as before:
        for name in index._LATER:
            before.delitem(index.COLUMNS[LATENTS], name)
        assert cats.encode(out) == 0
    assert brightness(cats, out)
    (note,) = notes_of(cats, out)
    assert "were made before the files of clips were kept" in note
    capsys.readouterr()
    assert cats.encode(out) == 0
    assert "whether they are of these clips is not known" in capsys.readouterr().err
