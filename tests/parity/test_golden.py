"""Our model, VAE, flow, masks, cleaning and schedules give what Open-Sora 1.2's own code gave."""

from __future__ import annotations

import importlib.util
import json
import os
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


@pytest.mark.long
def test_video_with_captions_of_different_lengths() -> None:
    model, tensors = load_case()
    inputs = part(tensors, "in.")
    positional = [inputs.pop(name) for name in ("x", "timestep", "y")]
    with torch.no_grad():
        out = model(*positional, **inputs)
    assert out.dtype == torch.float32
    assert_close(out, tensors["out"], 1e-5, 1e-5)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("name", ["STDiT3-XL/2", "STDiT3-3B/2"])
def test_published_sizes_have_upstreams_number_of_keys_and_parameters(name: str) -> None:
    shapes = adapter.state_dict_shapes(name)
    assert len(shapes) == 973
    buffer = shapes.pop("y_embedder.y_embedding")
    assert buffer == (300, 4096)
    count = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert count == {"STDiT3-XL/2": 1_207_643_972, "STDiT3-3B/2": 3_182_211_572}[name]


def test_captions_are_cleaned_as_by_upstream() -> None:
    rows = json.loads((GOLDEN / "text_clean.json").read_text())["rows"]
    assert [adapter.clean_text(row["text"]) for row in rows] == [row["cleaned"] for row in rows]


@pytest.mark.long
def test_masks_are_spread_as_upstreams() -> None:
    for kind, lengths in json.loads((GOLDEN / "mask_generator.json").read_text())["kinds"].items():
        for frames, want in lengths.items():
            if (
                "raises" in want
            ):  # upstream fails; ours masks one frame (tests/trainer/diffusion/test_frame_masks.py)
                continue
            given = ~adapter.masks(kind, int(frames), 2000, seed=7)
            per_frame = torch.tensor(want["p_masked_per_frame"])
            assert (given.float().mean(0) - per_frame).abs().max() < 0.05, (kind, frames)
            masks = {"".join(map(str, row)) for row in (~given).int().tolist()}
            assert masks <= set(
                want.get("distinct_masks", masks)
            )  # not listed where there are many


def test_the_vae_has_upstreams_keys_and_shapes() -> None:
    want = json.loads((GOLDEN / "state_dict_vae.json").read_text())
    assert {k: list(v) for k, v in adapter.state_dict_shapes("OpenSoraVAE_V1_2").items()} == want


def vae_of_the_regression() -> tuple[Tensor, Any]:
    """A video of two chunks and a small VAE, both from one seed."""
    config = {
        "spatial": {
            "block_out_channels": [8, 8, 16, 16],
            "layers_per_block": 1,
            "norm_num_groups": 4,
        },
        "temporal": {"filters": 8, "num_res_blocks": 1, "num_groups": 4},
    }
    vae = adapter.build_vae(config).eval()
    generator = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for _, parameter in sorted(vae.named_parameters()):
            spread = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
            parameter.add_(float(parameter.ndim == 1))  # norms near 1
    return torch.randn(1, 3, 19, 16, 16, generator=generator), vae


@pytest.mark.long
def test_the_vae_gives_what_it_gave_when_it_passed_the_whole_folder() -> None:
    video, vae = vae_of_the_regression()
    want = load_file(GOLDEN / "vae_regression.safetensors")
    assert_close(adapter.vae_encode(vae, video), want["z"], 5e-5, 2e-5)
    assert_close(adapter.vae_decode(vae, want["z"], 19), want["video"], 5e-5, 2e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    not (FULL / "check_parity.py").is_file(),
    reason="no full golden folder; name it in CLUSTERCTL_PARITY",
)
def test_the_whole_folder_passes_its_own_checker(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: another would import torch and diffusers once more."""
    spec = importlib.util.spec_from_file_location("check_parity", FULL / "check_parity.py")
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    for check in checker.CHECKS.values():
        check(adapter, str(FULL))
    said = capsys.readouterr().out
    failed = [line for line in said.splitlines() if not line.startswith("PASS")]
    assert failed == []
    assert checker.COUNT["PASS"] >= 90
