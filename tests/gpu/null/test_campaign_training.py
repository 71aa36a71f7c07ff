"""Runs of trainer.train on the null GPU: saves, resumes, signals and settings."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gpu.null.processes import Card, of_one_rank, records, wait_for
from tests.gpu.null.programs.training import write_run
from trainer.command_line import INTERRUPTED
from trainer.data.digits import main as make_digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]
# XL/2's heads and blocks, a quarter as wide: a checkpoint has 150 MB.
MODEL = ("--model.depth", "4", "--model.hidden-size", "288", "--model.num-heads", "4")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    buckets = {"144p": {1: (1.0, 2), 51: (1.0, 1)}}
    made = write_run(tmp_path_factory.mktemp("data"), "stage1", 6, 12, buckets)
    return ["-m", "trainer.train", *made, *MODEL]


def steps_of(gpu: Card, run: Path, words: Sequence[str | Path]) -> list[int]:
    gpu.run(*words, "--run-dir", run, more=of_one_rank())
    return [record["step"] for record in records(run, "step")]


@pytest.mark.parametrize(("engine", "next_one"), [("colossal", "native"), ("native", "colossal")])
def test_a_run_saves_and_another_engine_resumes(
    gpu: Card, words: list[str], engine: str, next_one: str
) -> None:
    first, second = gpu.place / "first", gpu.place / "second"
    # All weights learn: frozen ones are gathered by collectives, which bring nothing here.
    words = [*words, "--model.freeze-y-embedder", "false"]
    more = ["--engine", engine, "--max-steps", "3", "--ckpt-every", "2"]
    assert steps_of(gpu, first, [*words, *more]) == [1, 2, 3]
    saved = sorted(path.parent.name for path in first.glob("epoch*/manifest.json"))
    assert [name.rsplit("step", 1)[1] for name in saved] == ["2", "3"]
    more = ["--engine", next_one, "--max-steps", "5", "--load", str(first / saved[-1])]
    assert steps_of(gpu, second, [*words, *more]) == [4, 5]
    # What an epoch needs was made before its first step.
    (warmed,) = (one for one in records(second, "event") if one["name"] == "warm-up")
    assert warmed["data"]["shapes"] <= 4


@pytest.mark.parametrize(
    "more",
    [
        ("--deterministic", "true"),
        ("--offload-activations", "true"),
        ("--accumulation-steps", "2"),
        ("--fused-blocks", "false", "--compile", "false"),
        ("--plugin", "zero1"),
        ("--engine", "native", "--grad-checkpoint", "off"),
    ],
    ids=lambda more: more[0][2:] + more[1],
)
def test_a_setting_trains(gpu: Card, words: list[str], more: tuple[str, ...]) -> None:
    assert steps_of(gpu, gpu.place / "run", [*words, *more, "--max-steps", "2"]) == [1, 2]


def test_a_run_that_is_terminated_leaves_a_checkpoint(gpu: Card, words: list[str]) -> None:
    run, counted = gpu.place / "run", gpu.place / "counted"
    more = ["--max-steps", "1000", "--epochs", "1000", "--run-dir", str(run)]
    process = gpu.started(*words, *more, counted=counted)
    wait_for(lambda: len(records(run, "step")) >= 2, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, error
    assert len(list(run.glob("epoch*/manifest.json"))) == 1
    gpu.judged(counted)


def test_the_demos_model_trains_in_bf16(gpu: Card) -> None:
    """Its heads are 20 wide, no multiple of 8."""
    digits = gpu.place / "digits"
    make_digits(["--out", str(digits), "--clips", "40", "--seed", "1"])
    command = ["-m", "trainer.train", "demo", "--data-path", str(digits / "digits.csv")]
    command += ["--dtype", "bf16", "--max-steps", "2", "--log-every", "1"]
    assert steps_of(gpu, gpu.place / "run", command) == [1, 2]
