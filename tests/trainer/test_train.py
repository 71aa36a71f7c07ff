"""The command: what it writes, how it ends, what it says when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rank_variables import OF_A_RANK
from tests.trainer.ranks import REPO, TINY
from trainer import build_run as assemble
from trainer import train
from trainer.command_line import is_reporter
from trainer.config import description
from trainer.data.digits import main as render
from trainer.errors import CheckpointError, ConfigError
from trainer.runlog.telemetry import Event, StepRecord, read
from trainer.train import Stopper

KEY = "0123456789abcdef" * 2 + "01234567"


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes], limit_s: float = 60) -> None:  # fmt: skip
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "not within the limit"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_started_as_a_file_is_stopped_by_sigterm_and_leaves_a_checkpoint(
    tmp_path: Path,
) -> None:
    render(["--out", str(tmp_path / "clips"), "--clips", "64", "--seed", "1"])
    (tmp_path / "tiny.py").write_text(TINY)
    argv = [str(tmp_path / "tiny.py"), "--data-path", str(tmp_path / "clips/digits.csv"), "--outputs",
            str(tmp_path / "out"), "--max-steps", "100000", "--ckpt-every", "0", "--wandb", "offline"]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTERCTL_", "RANK", "WORLD_SIZE"))}  # fmt: skip
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_API_KEY": KEY, "NCCL_SECRET": KEY, "HOME": str(tmp_path)}  # fmt: skip
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(REPO / "trainer" / "train.py"), *argv],
            cwd=tmp_path, env=environment, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    run_dir = tmp_path / "out" / "001-STDiT3"
    try:
        wait_for(lambda: (run_dir / "telemetry.jsonl").is_file() and "step 3/" in out.read_text(), process)  # fmt: skip
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: "Current thread" in err.read_text() or "most recent call first" in err.read_text(), process)  # fmt: skip
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == train.INTERRUPTED
    finally:
        process.kill()
        process.wait(10)
    records = list(read(run_dir))
    last = [r for r in records if isinstance(r, StepRecord)][-1].step
    # A tracker that takes long is reported as soon as that is known.
    events = [r.name for r in records if isinstance(r, Event) and r.name != "tracking"]
    assert events.index("loss") < events.index("start")
    assert events[-2:] == ["checkpoint", "stopped"]
    assert list(run_dir.glob(f"epoch*-global_step{last}/manifest.json"))
    assert list(run_dir.glob("wandb/offline-run-*/run-*.wandb"))
    text = (run_dir / "config.json").read_text()
    document = json.loads(text)
    assert document["argv"] == argv
    assert document["config"]["max_steps"] == 100000
    assert document["environment"]["OMP_NUM_THREADS"] == "1"
    assert "commit" in document
    said = out.read_text() + err.read_text()
    assert KEY not in text + (run_dir / "telemetry.jsonl").read_text() + said
    assert "FutureWarning" not in said
    assert "error:" not in said


def test_a_wrong_key_is_one_sentence_and_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert train.main(["demo", "--lrr", "1"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert "did you mean lr" in said
    assert "Traceback" not in said


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank alone sets in the environment is gone afterwards."""
    for name in OF_A_RANK:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_run_without_its_data_or_checkpoint_leaves_no_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["demo"]) == 2
    assert "there is no digits/digits.csv for dataset.data_path" in capfd.readouterr().err
    (tmp_path / "clips.csv").write_text("path,text\n")
    assert train.main(["demo", "--data-path", "clips.csv", "--load", "nosuch"]) == 2
    assert f"there is no checkpoint at {tmp_path}/nosuch" in capfd.readouterr().err
    for words, says in (
        (
            ["--vae.type", "OpenSoraVAE_V1_2", "--vae.from-pretrained", "/no/vae"],
            "no weights at /no/vae",
        ),
        (
            ["--text-encoder.type", "t5", "--text-encoder.from-pretrained", "/no/t5"],
            "no folder /no/t5",
        ),
    ):
        for more in ([], ["--dry-run"]):
            assert train.main(["demo", "--data-path", "clips.csv", *words, *more]) == 2
            assert f"there {'are' if 'weights' in says else 'is'} {says}" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["clips.csv"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grad-checkpoint", "24000"], "every 24000th pair of blocks, and the model has"),
        (["--grad-checkpoint", "9" * 400], "grad_checkpoint must be auto, off, all"),
        (
            ["--fp8-linears", "--model.num-heads", "2", "--model.hidden-size", "40"],
            "model.hidden_size of a multiple of 16, not 40",
        ),
        (["--attention-table", "no.json"], "attention_table no.json cannot be read"),
    ],
)
def test_dry_run_refuses_what_no_model_can_be_trained_with(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips.csv").write_text("path,text\n")
    assert train.main(["demo", "--data-path", "clips.csv", *words, "--dry-run"]) == 2
    said = capfd.readouterr().err
    assert says in said
    assert max(map(len, said.splitlines())) < 200


@pytest.mark.long
def test_dry_run_says_what_would_be_done_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    rows = "".join(f"{row}.mp4,digit,9,64,64\n" for row in range(42))
    (tmp_path / "clips.csv").write_text("path,text,num_frames,height,width\n" + rows)
    words = ["tiny.py", "--data-path", "clips.csv", "--dry-run"]
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert train.main(words) == 0
    out = capfd.readouterr().out
    assert "data: 42 clips of clips.csv\n" in out
    assert "epoch 0: 3 steps of 3 x 1 microbatches, 10 microbatches in all\n" in out
    assert "nothing was started" in out
    wrong = "".join(f"{row}.mp4,digit,0,64,64\n" for row in range(101))
    with (tmp_path / "clips.csv").open("a") as file:
        file.write(wrong)
    assert train.main(words) == 2
    assert "101 rows had to be left out, 100 are allowed" in capfd.readouterr().err
    assert train.main([*words, "--dataset.max-wrong-rows", "101"]) == 0
    assert "data: 42 clips of clips.csv, 101 rows left out\n" in capfd.readouterr().out
    for more, says in (
        (["--dataset.features", "nowhere"], "there is no feature cache at nowhere"),
        (["--validation.data-path", "no.csv", "--validation.every", "1"], "no.csv: No such file"),
        (["--validation.data-path", "clips.csv", "--validation.every", "1"], "42 clips of clips"),
    ):
        assert train.main([*words, *more, "--dataset.max-wrong-rows", "101"]) == 2
        assert says in capfd.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "30")
    assert train.main([*words, "--dataset.max-wrong-rows", "101"]) == 2
    assert "30 ranks need 30 for a step" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips.csv", "tiny.py"]


def test_ranks_of_one_node_say_the_same_failure_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert train.main(["demo", "--lrr", "1"]) == 2
    assert capfd.readouterr().err == ""


def test_a_failure_of_one_rank_is_said_by_that_rank_and_an_agreed_one_by_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, agreed = CheckpointError("mine"), CheckpointError("ours")
    agreed.on_all_ranks = True
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    assert is_reporter(own)
    assert not is_reporter(agreed)
    monkeypatch.setenv("RANK", "0")
    assert is_reporter(agreed)


def test_an_unexpected_failure_ends_with_a_sentence_that_names_the_rank(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("the wire\nis cut")

    monkeypatch.setattr(train, "_train", broken)
    monkeypatch.setenv("RANK", "3")
    assert train.main(["demo"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "error: rank 3: RuntimeError: the wire"
    assert lines[0].startswith("Traceback")


def test_without_a_dataset_the_message_says_how_to_make_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert train.main(["demo", "--data-path", "none"]) == 2
    assert "trainer.data.digits" in capfd.readouterr().err


def test_run_directories_are_numbered_and_taken_once(tmp_path: Path) -> None:
    options = train.parser().parse_args(["demo"])
    config = train.configuration.load("demo", ["--outputs", str(tmp_path)])
    names = [train._run_dir(config, options).name for _ in range(3)]
    assert names == ["001-STDiT3", "002-STDiT3", "003-STDiT3"]
    (tmp_path / "1000-STDiT3").mkdir()
    assert train._run_dir(config, options).name == "1001-STDiT3"


def test_no_name_of_a_secret_reaches_config_json() -> None:
    environ = {"NCCL_DEBUG": "INFO", "CLUSTERCTL_TOKEN": "x", "CUDA_KEY": "x", "OTHER": "x"}
    assert description._environment(environ) == {"NCCL_DEBUG": "INFO"}


def test_ctrl_c_again_ends_at_once_but_one_keystroke_may_arrive_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, killed, now = SimpleNamespace(stop_requested=False), [], [10.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(train.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(train.signal, "signal", lambda *_: None)
    stop = Stopper()
    stop.attach(run)  # type: ignore[arg-type]
    stop(signal.SIGINT, None)
    stop(signal.SIGINT, None)
    assert run.stop_requested
    assert killed == []
    now[0] = 12.0
    stop(signal.SIGTERM, None)  # a supervisor may send it twice; the save goes on
    assert killed == []
    stop(signal.SIGINT, None)
    assert killed == [(os.getpid(), signal.SIGINT)]


class TwoRanks:
    """Rank 0's view of a group whose other rank sees the run directory or not."""

    rank, world = 0, 2

    def __init__(self, other_sees: bool) -> None:
        self.other_sees = other_sees

    def broadcast(self, value: Any) -> Any:
        return value

    def run_on_rank0(self, work: Callable[[], Any]) -> Any:
        return work()

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, ("node-2", self.other_sees)]


def test_a_run_directory_that_a_node_cannot_see_is_refused_at_the_start(tmp_path: Path) -> None:
    assemble.require_shared(tmp_path, TwoRanks(True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"1 of 2 ranks \(node-2\)") as caught:
        assemble.require_shared(tmp_path, TwoRanks(False))  # type: ignore[arg-type]
    assert caught.value.on_all_ranks
    assert list(tmp_path.iterdir()) == []


def test_a_text_encoder_that_was_copied_in_part_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run_dir = tmp_path / "first" / "epoch0-global_step2", tmp_path / "run"
    encoder = source.parent / "text_encoder"
    encoder.mkdir(parents=True)
    run_dir.mkdir()
    for name in ("config.json", "model.safetensors"):
        (encoder / name).write_text(name)
    config = train.configuration.load("demo", [])
    plain = assemble.shutil.copytree

    def killed(before: Path, after: Path) -> None:
        after.mkdir()
        (after / "config.json").write_text("con")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(assemble.shutil, "copytree", killed)
    with pytest.raises(OSError, match="No space"):
        assemble._prepare_text(config, run_dir, source, [])
    assert not (run_dir / "text_encoder").exists()
    monkeypatch.setattr(assemble.shutil, "copytree", plain)
    assemble._prepare_text(config, run_dir, source, [])
    copied = {path.name: path.read_text() for path in (run_dir / "text_encoder").iterdir()}
    assert copied == {name: name for name in ("config.json", "model.safetensors")}
    assert [path.name for path in run_dir.iterdir()] == ["text_encoder"]
