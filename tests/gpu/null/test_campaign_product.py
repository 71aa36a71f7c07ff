"""What else runs on a GPU: sampling, encoding, the starter's forks, checks of a node, kernels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from checks.parsers.census import parse_census
from clusterctl.preflight.active.ranks import program_text
from clusterctl.remote import payload as ship
from tests.clusterctl.payload.local import LocalConnection, tools_only
from tests.gpu.null.processes import Card, of_one_rank
from tests.trainer.data.features.feature_caches import Place, make_place, open_cache

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Clips, a small VAE and a config."""
    return make_place(tmp_path_factory.mktemp("clips"))


def test_two_ranks_sample_each_on_its_own_card(gpu: Card, place: Place) -> None:
    run, words = gpu.place / "run", [place.config_file, "--dtype", "bf16"]
    gpu.run("-m", "trainer.train", *words, "--run-dir", run, more=of_one_rank())
    asked = ["--num-frames", "17", "--image-size", "16", "16", "--num-sampling-steps", "2"]
    prompts = [word for number in range(4) for word in ("--prompt", f"clip number {number}")]
    gpu.run("-m", "trainer.infer", run, *prompts, *asked, ranks=2, devices=2)
    assert len(list(run.glob("samples/*.mp4"))) == 4


def test_two_ranks_encode_each_on_its_own_card(gpu: Card, place: Place) -> None:
    out = gpu.place / "features"
    words = ["-m", "trainer.data", "encode", place.config_file, out, "-q", "--workers", "1"]
    gpu.run(*words, "--dtype", "bf16", "--shard-mb", "1", ranks=2, devices=2)
    assert len(open_cache(out).check_rows(place.manifest(), place.plan().buckets) or ()) == 0


@pytest.mark.parametrize("engine", ["colossal", "native"])
def test_forked_ranks_start_cuda_behind_the_imports_of_an_engine(gpu: Card, engine: str) -> None:
    found = gpu.program("forks", engine, devices=2, judged=False)
    assert found["codes"] == [0, 0]
    assert found["used"] == []
    assert ("colossalai" in found["imported"]) == (engine == "colossal")


def test_captions_fit_beside_the_weights(gpu: Card) -> None:
    found = gpu.program("captions")
    assert found["refusal"] == ""
    assert found["weights"] == pytest.approx(9.5e9, rel=0.05)
    assert found["features"] < found["beside"] <= found["budget"] + found["features"]


def test_the_programs_of_active_checks_run_on_a_card(gpu: Card) -> None:
    """Numbers are zeros here, so what compares sums is left to a real card."""
    orders = [
        {"id": 1, "do": "matmul", "seconds": 0.2},
        {"id": 2, "do": "products", "seconds": 0.2},
        {"id": 3, "do": "copies", "bytes": 1 << 22},
        {"id": 4, "do": "free"},
    ]
    text = "\n".join(json.dumps(order) for order in ({"device": "cuda:1"}, *orders[:3])) + "\n"
    program = gpu.place / "rank.py"
    program.write_text(program_text())
    counted = gpu.place / "counted"
    done = subprocess.run(
        ["python", str(program)],
        env=gpu.environment(2, counted),
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    answers = {one["id"]: one for one in said if one["type"] == "answer"}
    assert sorted(answers) == [1, 2, 3], done.stderr
    assert {key: one["error"] for key, one in answers.items() if "error" in one} == {}
    assert answers[1]["tflops"] > 0
    (own,) = gpu.judged(counted).values()
    assert own.devices_used() == [1]


def test_the_census_sees_the_cards_through_nvml(gpu: Card, tmp_path: Path) -> None:
    env = tools_only(tmp_path / "bin", **{"nvidia-smi": "exit 1"}, cat='exec /bin/cat "$@"')
    env |= {"LD_LIBRARY_PATH": str(gpu.folder), "NULL_GPU_DEVICES": "2"}
    wanted = {"everything": True, "growth_s": 0.02, "nvml": True, "log": "x"}
    found = parse_census("n1", ship.probe(LocalConnection(env), "census", wanted, 60, nvml=True))
    assert [one.memory_total_bytes for one in found.gpus.gpus] == [80 << 30] * 2


def test_kernels_compute_what_the_formulas_say(gpu: Card) -> None:
    """By Triton's interpreter, on the CPU."""
    words = ["python", "-m", "tests.gpu.null.interpreted"]
    env = gpu.environment(1, gpu.place / "counted") | {"TRITON_INTERPRET": "1"}
    env.pop("LD_PRELOAD")
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=True)
    errors = json.loads(done.stdout)
    limits = {"fp32": 1e-6, "fp16": 1e-3}

    def limit(name: str) -> float:
        # In fp8: the share of values that round to the other side, of those halfway between two.
        return 3e-3 if name.startswith("fp8") else limits.get(name.rsplit(" ", 1)[-1], 2e-4)

    wrong = {name: error for name, error in errors.items() if not error <= limit(name)}
    assert len(errors) > 20
    assert wrong == {}
