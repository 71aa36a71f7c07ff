"""Clips without a place are counted by what they lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.data.rows import manifest_of, random_manifest
from trainer.data.loader.build_loader import build_loader
from trainer.data.loader.loader import TooFewClips
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.data.plan.unplaced import unplaced

Sizes = tuple[list[int], list[int], list[int]]


@pytest.mark.parametrize(
    ("sizes", "config", "interval", "expected"),
    [
        (([9, 7], [144] * 2, [256] * 2), {"144p": {51: (1.0, 2)}}, 1,
         ["2 are shorter than the 52 frames of 144p 51f (the longest has 9)"]),
        (([51, 9], [144] * 2, [256] * 2), {"144p": {51: (1.0, 2)}}, 1,
         ["2 are shorter than the 52 frames of 144p 51f (the longest has 51)"]),
        (([60, 200], [144] * 2, [256] * 2), {"144p": {51: (1.0, 2)}}, 3,
         ["1 is shorter than the 154 frames of 144p 51f at frame_interval 3 (the longest has 60)"]),
        (([200], [100], [100]), {"720p": {51: (1.0, 2)}, "360p": {51: (1.0, 2)}}, 1,
         ["1 is smaller than 80% of 360p (height x width from 184,320; the largest is 100x100)"]),
        (([1, 200], [144] * 2, [256] * 2), {"144p": {51: (1.0, 2)}}, 1,
         ["1 is stills (1 frame), and no bucket has 1 frame"]),
        (([200], [144], [256]), {"144p": {1: (1.0, 2)}}, 1,
         ["1 is longer than 1 frame, and every bucket has 1"]),
        (([60], [144], [256]), {"720p": {51: (1.0, 2)}, "144p": {102: (1.0, 2)}}, 1,
         ["1 is too small for the buckets of their length, too short for the others"]),
        (([200], [144], [256]), {"144p": {51: (0.01, 2)}}, 1, []),
        (([9], [144], [256]), {"144p": {51: (0.0, 2)}}, 1, ["all: every bucket has probability 0"]),
    ],
)  # fmt: skip
def test_each_clip_is_counted_by_what_it_lacks(
    sizes: Sizes,
    config: dict[str, dict[int, tuple[float, int]]],
    interval: int,
    expected: list[str],
) -> None:
    assert unplaced(manifest_of(*sizes), Buckets.parse(config), interval) == expected


def test_counts_are_of_all_clips_that_no_epoch_has() -> None:
    manifest = random_manifest(2000)
    buckets = Buckets.parse({"720p": {102: (0.5, 2)}, "480p": {51: (0.7, 5), 1: (0.5, 3)}})
    reachable = set(buckets.reachable(manifest)[0].tolist())
    texts = unplaced(manifest, buckets)
    assert len(texts) > 1
    numbers = [int(text.split()[0].replace(",", "")) for text in texts]
    assert sum(numbers) == 2000 - len(reachable)
    assert numbers == sorted(numbers, reverse=True)


def test_a_run_without_clips_that_are_long_enough_says_so() -> None:
    plan = DataPlan(
        manifest_of([9] * 60, [144] * 60, [256] * 60), Buckets.parse({"144p": {51: (1.0, 2)}}), 1
    )
    with pytest.raises(
        TooFewClips, match=r"of 60 clips 60 are shorter than the 52 frames"
    ) as caught:
        build_loader(plan, Cursor(), 0, 1, 1)
    assert "shorter or smaller buckets" in str(caught.value.hint)


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    from trainer.data.__main__ import main

    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{n}.mp4,x,{9 if n % 2 else 99},144,256\n" for n in range(12))
    (tmp_path / "m.csv").write_text(f"path,text,num_frames,height,width\n{rows}")
    (tmp_path / "c.py").write_text('bucket_config = {"144p": {51: (1.0, 2)}}\n')
    return lambda line: main(line.split())


def test_stats_warns_of_clips_that_are_never_trained_on(
    do: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert do("stats m.csv c.py -q --ranks 2") == 0
    said = capsys.readouterr()
    assert "warning: of 12 clips 6 are shorter than the 52 frames of 144p 51f" in said.err
    assert "never trained on" in said.err
    assert "1 steps on 2 ranks" in said.out


def test_simulate_says_which_option_has_the_ranks(
    do: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert do("simulate m.csv c.py") == 2
    said = capsys.readouterr().err
    assert "192 ranks need 192 for a step: of 12 clips 6 are shorter" in said
    assert "--ranks N" in said
    assert do("simulate m.csv c.py --world 2") == 0
