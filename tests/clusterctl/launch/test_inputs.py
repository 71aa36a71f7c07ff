"""What is read out of a launch line, by the trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.inputs import (
    files_of,
    kept_environment,
    parse_line,
    refuse_untrainable,
    resolve,
)


def test_line_is_split_as_a_shell_does() -> None:
    assert parse_line("stage1 --dataset.data-path 'a b.csv'") == (
        "stage1",
        ["--dataset.data-path", "a b.csv"],
    )
    for line in ("", "--lr 1", "a 'b"):
        with pytest.raises(UsageError):
            parse_line(line)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["--dataset.data-path", "clips.csv"], ["clips.csv"]),
        (["--data-path=clips.csv", "--lr", "1e-4"], ["clips.csv"]),
        (["--ckpt-path", "w.pt", "--data-path", "/d/x.csv"], ["/d/x.csv", "w.pt"]),
        (["--load", "outputs/001/epoch0-global_step5"],
         ["digits/digits.csv", "outputs/001/epoch0-global_step5"]),
        ([], ["digits/digits.csv"]),
        # Features are in the place of both encoders, which nodes need not have.
        (["--dataset.features", "/f", "--vae.from_pretrained", "/v"], ["digits/digits.csv", "/f"]),
        (["--validation.data-path", "v.csv", "--validation.every", "9"],
         ["digits/digits.csv", "v.csv"]),
        (["--validation.data-path", "v.csv", "--validation.every", "0"], ["digits/digits.csv"]),
    ],
)  # fmt: skip
def test_config_and_overrides_name_files(
    words: list[str], files: list[str], tmp_path: Path
) -> None:
    found = resolve("demo", words, workdir=tmp_path, env={}).reads["files"]
    assert list(found) == [one if one[0] == "/" else str(tmp_path / one) for one in files]


def test_model_cache_follows_the_environment(tmp_path: Path) -> None:
    config = {"vae": {"from_pretrained": "org/vae"}, "model": {"from_pretrained": None}}
    hub = "/hub/models--org--vae"
    assert files_of(config, tmp_path, {"HF_HOME": "/models"}) == ([f"/models{hub}"], [])
    assert files_of(config, tmp_path, {"HF_HUB_CACHE": "/hub"}) == ([hub], [])
    (tmp_path / "org" / "vae").mkdir(parents=True)  # a folder of that name wins, as in the trainer
    assert files_of(config, tmp_path, {}) == ([str(tmp_path / "org" / "vae")], [])


@pytest.mark.long
def test_weights_to_begin_with_are_known_from_what_every_attempt_reads(tmp_path: Path) -> None:
    words = ["--model.from_pretrained", "/w", "--load", "/old", "--dataset.data-path", "/c.csv"]
    found = resolve("demo", words, workdir=tmp_path, env={}).reads
    assert (found["files"], found["at_first"]) == (("/c.csv", "/w", "/old"), ("/w", "/old"))
    words = ["--vae.from_pretrained", "/old", "--load", "/old"]
    assert resolve("demo", words, workdir=tmp_path, env={}).reads["at_first"] == ()


def test_secrets_stay_out_of_the_environment_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    kept = kept_environment(["NCCL_IB_HCA=mlx5_1"], "none")
    assert kept["NCCL_DEBUG"] == "INFO"
    assert kept["NCCL_IB_HCA"] == "mlx5_1"
    assert "0123456789" not in str(kept)
    assert "hf_secret" not in str(kept)
    assert kept["WANDB_API_KEY"]


@pytest.mark.long
def test_wandb_is_asked_for_in_words(tmp_path: Path) -> None:
    assert resolve("demo", ["--wandb", "online"], workdir=tmp_path, env={}).reads["wandb"]
    assert not resolve("demo", ["--wandb", "offline"], workdir=tmp_path, env={}).reads["wandb"]


@pytest.mark.long
def test_trainer_resolves_the_config(tmp_path: Path) -> None:
    found = resolve("demo", ["--dataset.data-path", "x.csv"], workdir=tmp_path, env={})
    data = (str(tmp_path / "x.csv"),)
    reads = {"files": data, "on_head": (), "near": {}, "at_first": (), "wandb": False}
    assert found == ("STDiT3", reads, True)
    (tmp_path / "x1.csv").touch()
    found = resolve("demo", ["--dataset.data-path", "x.csv"], workdir=tmp_path, env={})
    assert found.reads["near"] == {data[0]: str(tmp_path / "x1.csv")}
    (tmp_path / "009-STDiT3-demo").mkdir()
    (tmp_path / "019-STDiT3-demo").mkdir()
    found = resolve("demo", ["--load", "009"], workdir=tmp_path, env={})
    assert found.reads["near"] == {str(tmp_path / "009"): str(tmp_path / "009-STDiT3-demo")}
    (tmp_path / "x.csv").touch()
    found = resolve("demo", ["--dataset.data-path", "x.csv"], workdir=tmp_path, env={})
    assert found.reads["on_head"] == data
    with pytest.raises(UsageError, match="no-such"):
        resolve("no-such", [], workdir=tmp_path, env={})
    with pytest.raises(UsageError, match="--lrr: there is no key lrr") as slip:
        resolve("demo", ["--lrr", "3"], workdir=tmp_path, env={})
    assert slip.value.hint == "did you mean lr?"


def test_config_is_read_without_torch() -> None:
    """The head may have none."""
    code = (
        "import sys, trainer.config.__main__; sys.exit(bool({'torch', 'numpy'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_run_starts_in_a_folder_that_is_open_to_all(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o700)
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(UsageError, match=r"every user can put files into .*/open, so no run"):
        resolve("demo", [], workdir=tmp_path / "open", env={})


@pytest.mark.long
def test_short_name_is_not_a_file_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("raise SystemExit('it ran')\n")
    assert resolve("demo", [], workdir=tmp_path, env={}).model
    with pytest.raises(UsageError, match="it ran"):
        resolve("./demo", [], workdir=tmp_path, env={})


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("path,text\na.mp4,hello\n", "no column 'num_frames'"),
        ("path,text,num_frames,height,width,fps\na.mp4,hello,8,16,16,8\n", "0 microbatches"),
    ],
)
def test_data_that_every_rank_would_refuse_is_refused_here(
    tmp_path: Path, table: str, said: str
) -> None:
    (tmp_path / "clips.csv").write_text(table)
    words = ["--dataset.data-path", "clips.csv"]
    line = resolve("demo", words, workdir=tmp_path, env={})
    with pytest.raises(UsageError, match=said) as caught:
        refuse_untrainable("demo", words, line, workdir=tmp_path, ranks=2)
    assert caught.value.hint or "trainer.data probe" in str(caught.value)


@pytest.mark.long
def test_run_without_data_is_refused_and_data_elsewhere_are_left_to_the_nodes(
    tmp_path: Path,
) -> None:
    line = resolve("stage1", [], workdir=tmp_path, env={})
    with pytest.raises(UsageError, match="there is no dataset"):
        refuse_untrainable("stage1", [], line, workdir=tmp_path, ranks=8)
    words = ["--dataset.data-path", "/nowhere/clips.csv"]
    line = resolve("demo", words, workdir=tmp_path, env={})
    assert refuse_untrainable("demo", words, line, workdir=tmp_path, ranks=2) is None
