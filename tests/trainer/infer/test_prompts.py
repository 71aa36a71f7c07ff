"""Prompts, lengths and plans: text in, jobs out."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from trainer.config import load as configuration
from trainer.errors import ConfigError
from trainer.infer.__main__ import length
from trainer.infer.jobs import plan_jobs, settings_of
from trainer.infer.prompts import Prompt, Scores, parse_prompts, read_prompts
from trainer.infer.sampling import generator_of
from trainer.runlog.output import configure


def test_scores_stand_behind_a_prompt_that_does_not_say_them() -> None:
    scores = Scores(aes=6.5, flow=7, camera_motion="pan right")
    assert scores.append("a cat") == (
        "a cat aesthetic score: 6.5. motion score: 7.0. camera motion: pan right."
    )
    said = "a cat motion score: 2.0."
    assert scores.append(said) == f"{said} aesthetic score: 6.5. camera motion: pan right."
    assert Scores().append("a cat") == "a cat"


def test_the_json_behind_a_prompt_is_its_conditions_and_wins() -> None:
    lines = ('a cat {"reference_path": "cat.png", "mask_strategy": "0"}', "a dog {not json")
    cat, dog = parse_prompts(lines, ["dog.png"], ["1"])
    assert (cat.text, cat.reference_path, cat.mask_strategy) == ("a cat", "cat.png", "0")
    assert (dog.text, dog.reference_path, dog.mask_strategy) == ("a dog {not json", "dog.png", "1")


def test_parts_of_a_prompt_follow_the_loops() -> None:
    (prompt,) = parse_prompts(["|0| a ship leaves |2| a ship at sea"])
    assert [prompt.at_loop(loop) for loop in range(4)] == [
        "a ship leaves", "a ship leaves", "a ship at sea", "a ship at sea",
    ]  # fmt: skip
    assert prompt.map(str.upper).at_loop(2) == "A SHIP AT SEA"
    assert parse_prompts(["a | b"])[0].parts == ((0, "a | b"),)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a cat {'reference_path': 'x'}", "prompt 0 does not end with valid JSON"),
        ('a cat {"size": "x"}', "prompt 0 sets 'size'; possible keys are reference_path"),
        ('a cat {"mask_strategy": 0}', "mask_strategy must be text, not 0"),
        ('{"mask_strategy": "0"}', "prompt 0 is empty"),
        ("|1| a", "parts start at"),
        ("|0| a |2| b |1| c", "parts start at"),
        ("|0| a |1|", "parts start at"),
    ],
)
def test_slips_are_refused_with_the_prompts_place(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("|", r"\|")):
        parse_prompts([line])


@pytest.mark.parametrize(
    ("text", "frames"), [("51", 51), ("2s", 51), ("4s", 102), ("16s", 408), ("16x", 816), ("image", 1)]
)  # fmt: skip
def test_lengths_have_upstreams_names(text: str, frames: int) -> None:
    assert length(text) == frames


@pytest.mark.parametrize("text", ["0", "-1", "5s", "", "1.5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="one of image, 2s"):
        length(text)


def test_a_size_by_name_is_upstreams_table_and_an_image_has_upstreams_rate() -> None:
    flags = ["--sample.resolution", "240p", "--sample.image-size", "none"]
    settings = settings_of(configuration.load("demo", flags))
    assert (settings.height, settings.width) == (240, 426)
    assert settings.fps == 8.0
    still = configuration.load("demo", [*flags, "--sample.num-frames", "1"])
    assert settings_of(still).fps == 120.0


def test_upstreams_transform_refuses_the_lengths_it_cannot_sample() -> None:
    flags = ["--scheduler.use-timestep-transform", "true", "--scheduler.timestep-transform"]
    settings_of(configuration.load("demo", [*flags, "latent"]))
    with pytest.raises(ConfigError, match="every time 0 for 2 to 16 frames"):
        settings_of(configuration.load("demo", [*flags, "upstream"]))


def test_every_sample_of_a_prompt_has_a_path() -> None:
    config = configuration.load("demo", ["--sample.num-sample", "3"])
    prompts = [Prompt(i, f"prompt {i}", ((0, f"prompt {i}"),)) for i in range(5)]
    jobs = plan_jobs(prompts, settings_of(config), Path("out"))
    assert len(jobs) == len({job.path for job in jobs}) == 15


def test_names_from_prompts_are_safe_and_never_collide() -> None:
    settings = settings_of(configuration.load("demo"))
    prompt = Prompt(0, "../a/b." + "c" * 80, ((0, "x"),))
    (job,) = plan_jobs([prompt], settings, Path("out"), named_by_prompt=True)
    assert job.path.parent == Path("out")
    assert len(job.path.stem) <= 50
    with pytest.raises(ConfigError, match="two prompts would both be"):
        plan_jobs([prompt, prompt], settings, Path("out"), named_by_prompt=True)


def test_random_numbers_belong_to_seed_place_sample_and_loop() -> None:
    draws = {
        generator_of(*words).initial_seed()
        for words in [
            (1, 0), (2, 0), (1, 1), (1, 0, 1), (1, 0, 0, 1), (1, 0, 1, 1), (1, 0, 0, 0, "edit"),
        ]
    }  # fmt: skip
    assert len(draws) == 7
    assert generator_of(1, 0).initial_seed() in draws


def test_a_prompt_file_of_any_editor_has_one_prompt_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure()
    path = tmp_path / "prompts.txt"
    lines = ["a cat", "a line\u2028separator", "next\x85line", "a form\x0cfeed", "größer"]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, "", ""]).encode())
    assert read_prompts(path) == tuple(lines)
    assert capsys.readouterr().err == f"blank lines of {path} left out: 1\n"
    path.write_bytes("\n".join(lines).encode("utf-16"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("flags", "rate"),
    [
        (["--sample.save-fps", "0.0001"], "0.0001"),
        (["--sample.save-fps", "1e9"], "1e+09"),
        (["--sample.frame-interval", "100000"], "8e-05"),
    ],
)
def test_a_rate_that_no_file_can_have_is_refused_before_sampling(
    flags: list[str], rate: str
) -> None:
    with pytest.raises(ConfigError, match=f"play at {re.escape(rate)} frames a second; 0.01 to"):
        settings_of(configuration.load("demo", flags))
    settings_of(configuration.load("demo", ["--sample.save-fps", "0.01"]))
