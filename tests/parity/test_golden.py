"""Our model, flow and schedules give the numbers that Open-Sora 1.2's own code gave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.parity import adapter

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
REPO = HERE.parents[1]
FULL = Path(os.environ.get("CLUSTERCTL_PARITY", REPO.parent / "shared" / "parity"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: t for key, t in tensors.items() if key.startswith(prefix)}


def load_case() -> tuple[Any, dict[str, Tensor]]:
    base = GOLDEN / "stdit3" / "s1_video_varlen"
    tensors = load_file(base.with_suffix(".safetensors"))
    model = adapter.build_stdit3(json.loads(base.with_suffix(".json").read_text())["config"])
    model.load_state_dict(part(tensors, "sd."), strict=True)
    return model.eval(), tensors


def assert_close(got: Tensor, want: Tensor, atol: float, rtol: float) -> None:
    """The checker's rule: the largest error against the largest golden value."""
    assert got.shape == want.shape
    error = float((got.double() - want.double()).abs().max())
    assert error <= atol + rtol * float(want.abs().max())


def test_video_with_captions_of_different_lengths() -> None:
    model, tensors = load_case()
    inputs = part(tensors, "in.")
    positional = [inputs.pop(name) for name in ("x", "timestep", "y")]
    with torch.no_grad():
        out = model(*positional, **inputs)
    assert out.dtype == torch.float32
    assert_close(out, tensors["out"], 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["plain", "transform"])
def test_sampling_with_guidance(name: str) -> None:
    model, tensors = load_case()
    question = json.loads((GOLDEN / "rf" / "sampling.json").read_text())["cases"][name]
    case = part(load_file(GOLDEN / "rf" / "sampling.safetensors"), f"{name}.")
    seen, final = adapter.sample(
        model,
        case["z0"],
        case["y"],
        tensors["sd.y_embedder.y_embedding"],
        case["mask_text"],
        {key: torch.tensor(value) for key, value in question["args"].items()},
        question["steps"],
        question["cfg_scale"],
        question["use_timestep_transform"],
        question["use_discrete_timesteps"],
    )
    assert_close(seen, case["zs"], 5e-5, 2e-5)
    assert_close(final, case["z_final"], 5e-5, 2e-5)


def test_timestep_transform_over_sizes_and_lengths() -> None:
    golden = json.loads((GOLDEN / "rf" / "timestep_transform.json").read_text())
    t = torch.tensor(golden["t"])
    for row in golden["rows"]:
        sizes = [torch.full_like(t, row[key]) for key in ("h", "w", "num_frames")]
        got = adapter.timestep_transform(t, *sizes, scale=row["scale"])
        assert_close(got, torch.tensor(row["out"]), 1e-3, 1e-5)


def test_learning_rates() -> None:
    for case in json.loads((GOLDEN / "lr_schedules.json").read_text()).values():
        got = adapter.lr_values(case["kind"], case["params"], case["base_lr"], len(case["lr"]))
        assert got == pytest.approx(case["lr"], abs=1e-10, rel=1e-6)


@pytest.mark.parametrize("name", ["STDiT3-XL/2", "STDiT3-3B/2"])
def test_published_sizes_have_upstreams_number_of_keys_and_parameters(name: str) -> None:
    shapes = adapter.state_dict_shapes(name)
    assert len(shapes) == 973
    buffer = shapes.pop("y_embedder.y_embedding")
    assert buffer == (300, 4096)
    count = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert count == {"STDiT3-XL/2": 1_207_643_972, "STDiT3-3B/2": 3_182_211_572}[name]


@pytest.mark.skipif(
    not (FULL / "check_parity.py").is_file(),
    reason="no full golden folder; name it in CLUSTERCTL_PARITY",
)
def test_the_whole_folder_passes_its_own_checker() -> None:
    command = [sys.executable, FULL / "check_parity.py", "--data", FULL, "--threads", "1"]
    command += ["--adapter", HERE / "adapter.py", "--only", "stdit3,rf,lr"]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " 0 skipped" in done.stdout
