"""Requests that cannot be: one sentence, and nothing is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.trainer.infer.command_line import command, names
from trainer.config import load as configuration
from trainer.data.video.mp4 import write_mp4
from trainer.errors import ConfigError
from trainer.infer import __main__ as infer
from trainer.infer import files
from trainer.infer.jobs import settings_of
from trainer.models import memory
from trainer.models.attention.table import Table


@pytest.mark.long
def test_expected_failures_are_one_sentence_and_write_nothing(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = command(run, tmp_path)
    wrong_model = [*good, "--model.hidden-size", "64"]
    assert infer.main(wrong_model) == 1
    assert "is not of this model" in capsys.readouterr().err
    nowhere = [str(tmp_path / "nowhere") if word == str(run[1]) else word for word in good]
    assert infer.main(nowhere) != 0
    (tmp_path / "prompts.txt").write_text("\n \n")
    assert infer.main(good) == 2
    assert "has no prompts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_folder_that_cannot_be_written_is_said_before_or_with_what_stays(
    run: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = command(run, tmp_path)
    in_a_file = [str(run[0] / "out") if word == str(tmp_path / "out") else word for word in words]
    assert infer.main(in_a_file) == 2
    said = capsys.readouterr().err
    assert f"{run[0]} is not a folder" in said
    assert "loading" not in said

    written: list[Path] = []

    def full(path: Path, *rest: object) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_mp4(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_mp4", full)
    assert infer.main(words) == 1
    said = capsys.readouterr().err
    second = tmp_path / "out" / "sample_0001.mp4"
    assert f"error: {second} cannot be written: No space left on device\n  hint: finished" in said
    assert names(tmp_path) == ["sample_0000.mp4"]
    monkeypatch.undo()
    assert infer.main(words) == 0
    assert "already made: 1 of 3 videos" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("number", ["positions", "dtype", "table"])
def test_request_with_other_numerics_is_another_request(
    number: str, run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(json.dumps(asdict(Table())))
    other.write_text(json.dumps(asdict(Table()) | {"spatial": [[None, "math"]]}))
    more = {
        "positions": ["--positions", "bf16-compat"],
        "dtype": ["--dtype", "bf16" if configuration.load(str(run[0]), []).dtype == "fp32" else "fp32"],
        "table": ["--attention-table", str(other)],
    }[number]  # fmt: skip
    assert infer.main(command(run, tmp_path)) == 0
    capsys.readouterr()
    assert infer.main(command(run, tmp_path, *more)) == 2
    assert "already exists and is another video" in capsys.readouterr().err
    assert infer.main(command(run, tmp_path, "--attention-table", str(same))) == 0
    assert "already made: 3 of 3 videos" in capsys.readouterr().err


def test_numbers_that_mean_nothing_are_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--condition-frame-edit", "1.5")) == 2
    said = capsys.readouterr().err
    assert "error: sample.condition_frame_edit must be at least 0 and at most 1; not 1.5" in said
    for flag, value in {"--cfg-scale": "nan", "--aes": "inf"}.items():
        with pytest.raises(SystemExit):
            infer.main(command(run, tmp_path, flag, value))
        assert f"argument {flag}: '{value}' must be a finite number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_what_cannot_fit_is_one_sentence_and_nothing_is_written(
    run: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert infer.main(command(run, tmp_path, "--num-frames", "400000000000")) == 1
    said = capsys.readouterr().err
    assert "2 videos of 400000000000 frames of 16x16" in said
    assert "iB are needed, this machine's memory has" in said
    assert "--num-frames" in said
    # What passes the lower bound and still does not fit.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 62)
    assert infer.main(command(run, tmp_path, "--num-frames", "400000000000")) == 1
    said = capsys.readouterr().err
    assert "too much for this machine's memory" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num-frames", "3m"], "one of image, 2s"),
        (["--resolution", "999p"], "resolution '999p' is not known"),
        (["--resolution", "240p", "--aspect-ratio", "5:4"], "240p has no ratio '5:4'"),
        (["--resolution", "240p", "--image-size", "16", "16"], "not both"),
        (["--start-index", "3"], "leave none of 3 prompts"),
        (["--reference-path", "nowhere.png"], "the reference nowhere.png cannot be used"),
        (["--mask-strategy", "0"], "asks for reference 0, counted from 0, of 0"),
        (["--reference-path", "a", "--reference-path", "b"], "2 --reference-path for 3 prompts"),
        (["--loop", "2", "--condition-frame-length", "8"], "nothing new would be made"),
        (["--nonsense", "1"], "nonsense"),
    ],
)
def test_wrong_requests_are_one_sentence(
    run: tuple[Path, Path],
    tmp_path: Path,
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        code = infer.main(command(run, tmp_path, *flags))
    except SystemExit as end:  # argparse's own
        code = int(end.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists() or not names(tmp_path)


def test_the_size_must_be_said_somewhere(run: tuple[Path, Path]) -> None:
    config = configuration.load(run[0], ["--sample.num-frames", "none"])
    with pytest.raises(ConfigError, match="size of the videos is not set"):
        settings_of(config)


@pytest.mark.long
def test_a_checkpoint_without_its_end_is_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "run"
    shutil.copytree(run[1].parent, mine)
    checkpoint = mine / run[1].name
    (checkpoint / "manifest.json").unlink()
    shutil.rmtree(checkpoint / "ema")
    words = command(run, tmp_path)
    place = words.index(str(run[1]))
    for mark in (mine / "telemetry.jsonl", checkpoint / "sampler.json", checkpoint / "seen.npy"):
        mark.write_text("")
        aside = mine / f".tmp-{checkpoint.name}"
        for path, said in (
            (checkpoint, "is not complete: it has no manifest.json"),
            (aside, "no complete"),
        ):
            checkpoint.rename(path)
            assert infer.main([*words[:place], str(path), *words[place + 1 :]]) == 1
            assert said in capsys.readouterr().err
            path.rename(checkpoint)
        mark.unlink()
    (mine / "telemetry.jsonl").write_text("")
    assert infer.main([*words[:place], str(mine), *words[place + 1 :]]) == 1
    assert f"{mine} holds no complete checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (mine / "telemetry.jsonl").unlink()  # now it looks like upstream's, which never have a manifest
    assert infer.main([*words[:place], str(checkpoint), *words[place + 1 :]]) == 0


@pytest.mark.long
def test_prompts_longer_than_the_encoder_reads_are_named(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(run, tmp_path)
    place = words.index("--prompt-path")
    del words[place : place + 2]
    long = f"|0| {'digit two ' * 5} |1| {'digit one ' * 5}"  # two parts of one prompt
    assert infer.main([*words, "--prompt", "digit one", "--prompt", long]) == 0
    said = capsys.readouterr().err
    assert "1 prompts are longer than the 6 tokens that the model reads and are cut there; the first is prompt 1" in said  # fmt: skip


@pytest.mark.parametrize("kind", ["prompts", "samples"])
def test_a_given_run_reads_and_writes_nothing_outside_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run, home = tmp_path / "001-given", tmp_path / "home"
    for folder in (run, home):
        folder.mkdir()
    (home / "secret").write_text("a secret of the victim\n")
    config = configuration.to_dict(configuration.load("demo"))
    if kind == "prompts":
        config["sample"]["prompts"] = str(home / "secret")
    else:
        (run / "samples").symlink_to(home)
    (run / "config.json").write_text(json.dumps({"config": config}))
    words = [] if kind == "prompts" else ["--prompt", "digit one"]
    assert infer.main([str(run), *words]) == 2
    said = capsys.readouterr().err
    assert "which is outside of it" in said if kind == "prompts" else "samples is a link" in said
    assert "victim" not in said
    assert [one.name for one in home.iterdir()] == ["secret"]
