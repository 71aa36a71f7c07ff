"""VBench's list of prompts and the names of its videos, from small files in its format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.infer.infer_run import make_run
from trainer.errors import ConfigError
from trainer.infer import __main__ as infer
from trainer.infer.sampling import generator_of
from trainer.infer.vbench import plan_jobs, read_suite
from trainer.runlog import samples

ENTRIES = [
    {"prompt_en": "In a still frame, a stop sign", "dimension": ["temporal_flickering"]},
    {"prompt_en": "A boat, façade. {x} |0| *?", "dimension": ["subject_consistency", "dynamic_degree"]},
    {"prompt_en": "a bird", "dimension": ["color"], "auxiliary_info": {"color": "red"}},
    {"prompt_en": "A boat, façade. {x} |0| *?", "dimension": ["scene"]},
]  # fmt: skip


def listed(folder: Path, entries: object = ENTRIES) -> Path:
    path = folder / "VBench_full_info.json"
    path.write_text(json.dumps(entries))
    return path


def names(path: Path, *dimensions: str) -> list[str]:
    suite = read_suite(path, dimensions)
    return [str(job.path) for job in plan_jobs(suite, tuple(suite), Path("out"))]


def test_names_are_those_that_vbench_looks_for(tmp_path: Path) -> None:
    found = names(listed(tmp_path))
    still = [f"out/videos/In a still frame, a stop sign-{n}.mp4" for n in range(25)]
    boat = [f"out/videos/A boat, façade. {{x}} |0| *?-{n}.mp4" for n in range(5)]
    assert found == [*still, *boat, *(f"out/videos/a bird-{n}.mp4" for n in range(5))]
    assert names(tmp_path / "VBench_full_info.json", "color", "scene") == found[25:]


def test_a_prompt_keeps_its_place_and_each_video_its_own_random_numbers(tmp_path: Path) -> None:
    whole, part = (read_suite(listed(tmp_path), names) for names in ((), ("color", "scene")))
    assert [prompt.index for prompt in whole] == [0, 1, 2]
    assert [prompt.index for prompt in part] == [1, 2]
    assert next(prompt.parts for prompt in part) == ((0, ENTRIES[1]["prompt_en"]),)
    jobs = plan_jobs(whole, tuple(whole), tmp_path)
    seeds = {generator_of(42, job.prompt.index, job.sample).initial_seed() for job in jobs}
    assert len(seeds) == len(jobs) == 35


def test_prompt_files_are_as_good_as_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "prompts_per_dimension"
    folder.mkdir()
    (folder / "temporal_flickering.txt").write_text("a lamp\n")
    (folder / "subject_consistency.txt").write_text("a dog runs \n\na cat\n")
    assert [prompt.text for prompt in read_suite(folder)] == ["a dog runs", "a cat", "a lamp"]
    assert list(read_suite(folder, ["motion_smoothness"]).values()) == [5, 5]
    assert list(read_suite(folder / "temporal_flickering.txt").values()) == [25]


@pytest.mark.parametrize(
    ("entries", "dimensions", "said"),
    [
        ({}, (), "cannot be read: it is not a list of prompts"),
        ([{"prompt_en": "x"}], (), "entry 0 has no text prompt_en, or no list dimension"),
        ([{"prompt_en": " ", "dimension": ["color"]}], (), "entry 0 has no text"),
        ([], (), "has no prompts"),
        ([{"prompt_en": "a/b", "dimension": ["color"]}], (), "no file name can have"),
        ([{"prompt_en": "é" * 120, "dimension": ["color"]}], (), "more than 240 bytes"),
        (ENTRIES, ("colour",), "no dimension colour"),
    ],
)
def test_a_list_that_is_no_good_is_refused(
    tmp_path: Path, entries: object, dimensions: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_suite(listed(tmp_path, entries), dimensions)
    with pytest.raises(ConfigError, match="No such file"):
        read_suite(tmp_path / "missing.json")


@pytest.mark.long
def test_videos_are_made_once_and_nothing_else_lies_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, checkpoint = make_run(tmp_path)
    path = listed(tmp_path, ENTRIES[2:3])
    out = tmp_path / "out"
    words = [str(file), "--ckpt-path", str(checkpoint), "--num-sampling-steps", "1"]
    words += ["--vbench", str(path), "--save-dir", str(out)]
    for flags, said in (
        (["--prompt", "x"], "leave out --prompt"),
        (["--num-sample", "2"], "leave out --num-sample"),
        (["--num-frames", "image"], "VBench judges videos"),
    ):
        assert infer.main([*words, *flags]) == 2
        assert said in capsys.readouterr().err
    assert infer.main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("to make") == 5
    assert not out.exists()
    assert infer.main(words) == 0
    wanted = [f"a bird-{n}.mp4" for n in range(5)]
    assert sorted(one.name for one in (out / "videos").iterdir()) == wanted
    assert len({(out / "videos" / name).read_bytes() for name in wanted}) == 5
    index = samples.read(out)
    assert [video.file for video in index.videos] == [f"videos/{name}" for name in wanted]
    kept = (out / "videos" / wanted[0]).stat().st_mtime_ns
    (out / "videos" / wanted[3]).unlink()
    assert infer.main(words) == 0
    assert "already made: 4 of 5 videos" in capsys.readouterr().err
    assert (out / "videos" / wanted[0]).stat().st_mtime_ns == kept
