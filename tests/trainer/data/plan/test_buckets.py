"""Aspect tables and bucket assignment against Open-Sora's own results, and the hash draw's law."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.rows import manifest_of, random_manifest, read_rows
from tests.trainer.data.upstream_order import UpstreamBuckets, UpstreamPlan
from trainer.data.plan.aspect import resolution, size_of
from trainer.data.plan.buckets import Buckets, bits, uniform
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden"
KNOWN = [
    "144p",
    "256",
    "240p",
    "360p",
    "512",
    "480p",
    "720p",
    "1024",
    "1080p",
    "2k",
    "2048",
    "2880",
    "4k",
]


def golden_tables() -> list[Path]:
    more = os.environ.get("CLUSTERCTL_PARITY") or Path(__file__).parents[5] / "shared" / "parity"
    tables = {path.name: path for path in (Path(more) / "buckets").glob("buckets_*.json")}
    tables |= {path.name: path for path in GOLDEN.glob("buckets_*.json")}
    return sorted(tables.values())


def forced(config: dict) -> dict:
    return {
        name: {
            frames: [[1.0, 1.0] if isinstance(chance, list) else 1.0, size]
            for frames, (chance, size) in lengths.items()
        }
        for name, lengths in config.items()
    }


def small_batches(config: dict) -> dict:
    return {
        name: {
            frames: [chance, max(1, min(size, 4)) if size else size]
            for frames, (chance, size) in lengths.items()
        }
        for name, lengths in config.items()
    }


def test_aspect_tables_are_upstream_s_in_values_and_order():
    table = json.loads((GOLDEN / "aspect_ratios.json").read_text())["table"]
    with pytest.raises(ConfigError, match=f"choose {', '.join(KNOWN)} and NNpx"):
        resolution("0p")
    assert set(KNOWN) == set(table)
    for name, entry in table.items():
        shape = resolution(name)
        assert shape.pixels == entry["pixels"]
        mine = [(float(ratio), list(size)) for ratio, size in shape.sizes.items()]
        assert mine == [(float(ratio), size) for ratio, size in entry["ratios"].items()], name


def test_ratio_is_found_by_either_name():
    assert size_of("256", "1.0") == size_of("256", "1.00") == (256, 256)
    assert size_of("360p", "16:9") == (640, 360)
    with pytest.raises(ConfigError, match=r"no ratio '7'.*1\.00"):
        size_of("360p", "7")


def test_pixel_names_are_square_when_small_and_multiples_of_16_when_large():
    assert resolution("16px").sizes == {"1.00": (16, 16)}
    for height, width in resolution("256px").sizes.values():
        assert height % 16 == 0
        assert width % 16 == 0
        assert height * width == pytest.approx(256 * 256, rel=0.08)
    with pytest.raises(ConfigError):
        resolution("7px")
    with pytest.raises(ConfigError, match="360p"):
        resolution("361p")


@pytest.mark.parametrize("path", golden_tables(), ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "case", ["seeded_epoch0", "seeded_epoch1", "forced_prob1", "forced_prob1_interval2"]
)
def test_upstream_draw_places_every_row_as_upstream_does(path, case):
    table = json.loads(path.read_text())
    want = table[case]
    config = table["bucket_config"]
    buckets = UpstreamBuckets.parse(forced(config) if case.startswith("forced") else config)
    assert len(buckets.cells) == want["num_bucket"]
    manifest = read_rows(path.parent / table["rows_csv"])
    cells = buckets.assign(manifest, table["seed"], want["epoch"], want["frame_interval"])
    for row, cell in enumerate(cells):
        if want["ids"][row] is None:
            assert cell == -1, row
            continue
        bucket = buckets.cells[cell]
        name, frames, ratio = want["ids"][row]
        assert (bucket.resolution, bucket.frames, float(bucket.ratio)) == (
            name,
            frames,
            float(ratio),
        )
        assert [bucket.frames, bucket.height, bucket.width] == want["thw"][row]
        assert bucket.batch_size == want["batch_size"][row]
    if case.startswith("forced"):  # nothing is left to chance, so the other draw agrees
        again = Buckets.parse(forced(config)).assign(
            manifest, table["seed"], want["epoch"], want["frame_interval"]
        )
        assert (again == cells).all()


@pytest.mark.long
@pytest.mark.parametrize("path", golden_tables(), ids=lambda path: path.stem)
def test_upstream_order_gives_upstream_s_batches_and_resumes(path):
    table = json.loads(path.read_text())
    manifest = read_rows(path.parent / table["rows_csv"])
    buckets = UpstreamBuckets.parse(small_batches(table["bucket_config"]))

    def names(plan: DataPlan, first: int, step: int) -> list[list[str]]:
        batches = list(plan.epoch(0))[first::step]
        shapes = [(batch.rows, plan.buckets.cells[batch.cell]) for batch in batches]
        return [[f"{row}-{b.frames}-{b.height}-{b.width}" for row in rows] for rows, b in shapes]

    for case in table["sampler"]:
        plan = UpstreamPlan(manifest, buckets, table["seed"], drop_last=case["drop_last"])
        world = case["num_replicas"]
        for rank, want in enumerate(case["batches"]):
            assert names(plan, rank, world)[: len(want)] == want
            if case["drop_last"]:
                assert plan.steps(Cursor(), world) == len(want)
    for case in table["sampler_resume"]:
        plan = UpstreamPlan(manifest, buckets, table["seed"])
        first = case["state_dict"]["last_micro_batch_access_index"]
        got = names(plan, first, case["num_replicas"])
        assert got[: len(case["first_batches"])] == case["first_batches"]


def reference_assign(buckets, manifest, seed, epoch, interval):
    """Row by row, as the semantics are written; the draws are the hash's own."""
    cells = []
    for row in range(len(manifest)):
        length, height, width = (
            int(column[row]) for column in (manifest.num_frames, manifest.height, manifest.width)
        )
        found = -1
        for name in dict.fromkeys(slot.resolution.name for slot in buckets.slots):
            slots = [(i, s) for i, s in enumerate(buckets.slots) if s.resolution.name == name]
            shape = slots[0][1].resolution
            if height * width < 0.8 * shape.pixels:
                continue
            for index, slot in slots:
                one = uniform(np.array([row]), seed, epoch, index, 0)[0]
                two = uniform(np.array([row]), seed, epoch, index, 1)[0]
                fits = length == 1 if slot.frames == 1 else length > slot.frames * interval
                if not fits or (slot.take is not None and one > slot.take):
                    continue
                if slot.keep >= 1 or (one if slot.take is None else two) < slot.keep:
                    off = [abs(height / width - float(ratio)) for ratio in shape.sizes]
                    found = slot.first_cell + off.index(min(off))
                break
            if found >= 0:
                break
        cells.append(found)
    return cells


CHANCES = st.one_of(
    st.sampled_from([0.0, 0.3, 1.0]),
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.1, 1.0])),
)
CONFIGS = st.dictionaries(
    st.sampled_from(["144p", "256", "360p", "720p", "64px"]),
    st.dictionaries(
        st.sampled_from([1, 51, 102, 204]), st.tuples(CHANCES, st.integers(1, 9)), min_size=1
    ),
    min_size=1,
)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.integers(0, 2**40), st.integers(0, 9), st.sampled_from([1, 2, 3]))
def test_vectorised_assignment_follows_the_written_semantics(config, seed, epoch, interval):
    manifest = random_manifest(40, seed % 7)
    buckets = Buckets.parse(config)
    got = buckets.assign(manifest, seed, epoch, interval)
    assert got.tolist() == reference_assign(buckets, manifest, seed, epoch, interval)


def test_hash_draw_has_the_stated_probabilities_and_changes_with_the_epoch():
    rows = 40_000
    manifest = manifest_of([120] * rows, [720] * rows, [1280] * rows)
    config = {"720p": {102: ((0.5, 0.33), 1)}, "360p": {102: (0.2, 1), 51: (1.0, 1)}}
    buckets = Buckets.parse(config)
    first, second = (buckets.assign(manifest, 1, epoch) for epoch in (0, 1))
    shares = [np.mean([cell >= 0 and buckets.cells[cell].resolution == "720p" for cell in first])]
    shares.append(
        np.mean([cell >= 0 and buckets.cells[cell].resolution == "360p" for cell in first])
    )
    # 720p: 0.33 take it and half of these stay; of the rest 102 frames are always taken, 0.2 stay
    assert shares[0] == pytest.approx(0.33 * 0.5, abs=0.01)
    assert shares[1] == pytest.approx((1 - 0.165) * 0.2, abs=0.01)
    assert 0.1 < (first != second).mean() < 0.9
    assert (first == buckets.assign(manifest, 1, 0)).all()


def test_hash_bits_are_even_and_keys_independent():
    rows = np.arange(50_000)
    one, two = uniform(rows, 7, 0, 3), uniform(rows, 7, 0, 4)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02
    counts = np.histogram(one, 16, (0, 1))[0]
    assert abs(counts - len(rows) / 16).max() < 6 * np.sqrt(len(rows) / 16)
    assert len(np.unique(bits(rows, 0, -1, 2**70))) == len(rows)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "empty"),
        ({"360p": {51: (0.5, None)}}, r"\['360p'\]\[51\]: batch size None"),
        ({"360p": {51: (1.5, 2)}}, "1.5 is not from 0 to 1"),
        ({"360p": {51: ((0.5, 0.5, 0.5), 2)}}, r"p or \(p, q\)"),
        ({"360p": {51: 3}}, "not .probability, batch size"),
        ({"360p": {51: (1.0, 0)}}, "below 1"),
        ({"360p": {"x": (1.0, 1)}}, "'x' is not a number of frames"),
        ({"360p": {51: (1.0, 1), "51": (1.0, 1)}}, "a length twice"),
        ({"360p": []}, "not {frames"),
        ({"17p": {51: (1.0, 1)}}, "'17p' is not known"),
    ],
)
def test_wrong_configuration_names_the_entry(config, message):
    with pytest.raises(ConfigError, match=message):
        Buckets.parse(config)


def test_other_semantics_are_refused_by_name():
    with pytest.raises(ConfigError, match="open-sora-3"):
        Buckets.parse({"360p": {51: (1.0, 1)}}, semantics="open-sora-3")


def test_second_number_is_the_chance_to_skip_a_length_in_open_sora_2():
    config = {"256px": {129: ((1.0, 0.7), 1), 65: ((1.0, 0.0), 2), 33: (1.0, 4)}}
    rows = 20_000
    manifest = manifest_of([129] * rows, [256] * rows, [256] * rows)
    for semantics, longest in (("open-sora-2", 0.3), ("open-sora-1.2", 0.0)):
        buckets = Buckets.parse(config, semantics=semantics)
        lengths = np.array([cell.frames for cell in buckets.cells])
        found = lengths[buckets.assign(manifest, 1, 0)]
        assert np.mean(found == 129) == pytest.approx(longest, abs=0.02)
        # A clip of exactly 129 frames is long enough only here; the other reading of (1.0, 0.0)
        # never takes 65 frames, so everything goes to 33.
        rest = 65 if semantics == "open-sora-2" else 33
        assert np.mean(found == rest) == pytest.approx(1 - longest, abs=0.02)
    half = Buckets.parse({"256px": {33: (1.0, 4)}}, semantics="open-sora-2")
    assert half.assign(manifest_of([65], [256], [256]), 1, 0, frame_interval=2).tolist() == [-1]
    assert half.assign(manifest_of([66], [256], [256]), 1, 0, frame_interval=2).tolist() != [-1]


def test_json_keys_mean_the_same_and_a_zero_cell_may_lack_a_batch_size():
    one = Buckets.parse({"360p": {51: (1.0, 4), 102: (0.0, None)}})
    two = Buckets.parse({"360p": {"102": [0, None], "51": [1, 4]}})
    assert one.hash == two.hash
    assert one.hash != Buckets.parse({"360p": {51: (1.0, 5), 102: (0.0, None)}}).hash
    # the blocked length still takes the clips that are long enough for it
    assert one.assign(manifest_of([200, 80], [360, 360], [640, 640]), 0, 0).tolist()[0] == -1
