"""Presets and which checkpoints are wanted."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.serve.presets import SAMPLE, default_preset, find_preset, read_presets
from clusterctl.serve.wanted import Choice, Sealed
from trainer.config.keys import SampleConfig
from trainer.infer.lengths import LENGTHS


def test_the_keys_are_those_of_the_trainer() -> None:
    assert {*SAMPLE, "prompts"} == {field.name for field in fields(SampleConfig)}


def test_upstreams_presets() -> None:
    known = read_presets(None)
    low, high, long = (known[name].sample for name in ("low4s", "high4s", "low16s"))
    assert (LENGTHS[low["num_frames"]], low["resolution"], low["batch_size"]) == (102, "360p", 8)
    assert (high["resolution"], high["batch_size"]) == ("720p", 2)
    assert (LENGTHS[long["num_frames"]], long["batch_size"]) == (408, 2)
    for one in (low, high, long):
        assert (one["num_sampling_steps"], one["cfg_scale"], one["aes"]) == (30, 7.0, 6.5)
        assert (one["fps"], one["aspect_ratio"]) == (24.0, "9:16")


def test_presets_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "presets.toml"
    path.write_text('[still]\nnum_frames = 1\nresolution = "720p"\nprompts = "few.txt"\n')
    found = find_preset("still", read_presets(path))
    assert found.sample == {"num_frames": 1, "resolution": "720p"}
    assert found.prompts == tmp_path / "few.txt"
    with pytest.raises(UsageError, match="there is no preset stil") as wrong:
        find_preset("stil", read_presets(path))
    assert wrong.value.hint == "did you mean still?"


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[a]\nnum_frame = 1", r"\[a\] has no key num_frame", "did you mean num_frames?"),
        ("[a]\nfps = '24'", r"fps = '24' is not of type int or float", None),
        ("[a]\nimage_size = [1]", r"is not \[height, width\]", None),
        ("[low4s]\nfps = 8", "is built in", "give it another name"),
        ("['../a']\nfps = 8", "cannot be the name of a folder", "give it another name"),
        ("fps = 8", "fps is not in a table", "begin it with [my-preset]"),
        ("[a", "is not TOML", None),
        ("[a]\nupscale = 0", "upscale = 0 is not a whole number", None),
        ("[a]\nseed = true", "seed = True is not of type int", None),
    ],
)
def test_a_wrong_file_is_one_sentence(
    tmp_path: Path, text: str, words: str, hint: str | None
) -> None:
    path = tmp_path / "presets.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as wrong:
        read_presets(path)
    assert hint is None or wrong.value.hint == hint


def test_the_default_is_the_runs_own_where_it_says_size_and_length() -> None:
    assert default_preset({"sample": {"num_frames": 8, "image_size": [16, 16]}}) == "run"
    assert default_preset({"sample": {"num_frames": None, "image_size": [16, 16]}}) == "low4s"
    assert default_preset({}) == "low4s"


def test_choices() -> None:
    names = ["epoch0-global_step9", "epoch0-global_step10", "epoch1-global_step20"]
    sealed = [Sealed(name, float(at)) for at, name in enumerate(names)][::-1]

    def steps(choice: Choice) -> list[int]:
        return [one.step for one in choice.of(sealed)]

    assert steps(Choice()) == [9, 10, 20]
    assert steps(Choice(after_step=9)) == [10, 20]
    assert steps(Choice(every=10)) == [10, 20]
    assert steps(Choice(first_of_epoch=True)) == [9, 20]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's file")
def test_presets_of_another_user_in_the_current_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets.toml").write_text("[mine]\nprompts = '/etc/shadow'\n")
    assert "mine" in read_presets(None)
    os.chown(tmp_path / "presets.toml", 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534, so it is not used"):
        read_presets(None)


def test_presets_of_the_current_folder_that_are_a_pipe_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "presets.toml")
    with pytest.raises(UsageError, match="is no plain file, so it is not used"):
        read_presets(None)


@pytest.mark.parametrize("text", ["a=" + "[" * 5000, "a=" + "{a=" * 3000, "a=" + "9" * 5000])
def test_deep_or_endless_presets_are_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UsageError, match=r"nested too deeply|thousands of digits"):
        read_presets(tmp_path / "p.toml")


def test_prompts_of_an_unknown_home_are_a_path_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[a]\nprompts = "~nosuchuser/x"\n')
    assert read_presets(tmp_path / "p.toml")["a"].prompts == tmp_path / "~nosuchuser/x"
