"""Open-Sora's video VAE: sizes, chunks, memory, chance, precision, weights and what is refused.

Its numbers against upstream's are in tests/parity.
"""

from __future__ import annotations

import builtins
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.models.tiny_vae import SETTINGS, clip, save_vae, tiny_vae
from trainer.components import build_parts, build_vae, load_vae, make_tiny_text_encoder
from trainer.config import load as configuration
from trainer.config.keys import VaeConfig
from trainer.errors import CheckpointError, ConfigError, OutOfMemory
from trainer.models.memory import MemoryBudget, in_batches
from trainer.models.vae.interface import IdentityVAE, Posterior
from trainer.models.vae.spatial import Strips, modern_names
from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

EVERYTHING = MemoryBudget(1 << 40)


@pytest.fixture(scope="module")
def vae() -> OpenSoraVAE:
    return tiny_vae()


def relative(got: Tensor, want: Tensor) -> float:
    """Largest error against the largest value."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


# --- sizes and chunks --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("frames", "latents"),
    [(1, 1), (4, 1), (5, 2), (16, 4), (17, 5), (18, 6), (20, 6), (21, 6), (34, 10), (35, 11), (51, 15), (102, 30), (204, 60), (408, 120)],
)  # fmt: skip
def test_latent_length_of_every_kind_of_clip(vae: OpenSoraVAE, frames: int, latents: int) -> None:
    assert vae.latent_size((frames, 480, 854)) == (latents, 60, 106)


@pytest.mark.parametrize("frames", [1, 2, 17, 20, 35])
def test_latents_and_videos_have_the_sizes_that_were_promised(
    vae: OpenSoraVAE, frames: int
) -> None:
    video = clip(frames, 17, 30, batch=2)  # edges that are no multiple of 8
    z = vae.encode_posterior(video).mean
    assert z.shape == (2, 4, *vae.latent_size((frames, 17, 30)))
    assert z.dtype == torch.float32
    assert vae.decode(z, frames).shape == (2, 3, frames, 16, 24)


def test_chunks_do_not_see_each_other(vae: OpenSoraVAE) -> None:
    video = clip(40)
    whole = vae.encode_posterior(video).mean
    parts = [vae.encode_posterior(video[:, :, a:b]).mean for a, b in ((0, 17), (17, 34), (34, 40))]
    assert relative(torch.cat(parts, 2), whole) < 1e-5
    back = vae.decode(whole, 40)
    parts = [vae.decode(z, n) for z, n in zip(whole.split((5, 5, 2), 2), (17, 17, 6), strict=True)]
    assert relative(torch.cat(parts, 2), back) < 1e-5


def test_a_video_can_be_one_chunk() -> None:
    vae = tiny_vae(dataclasses.replace(SETTINGS, micro_frame_size=None))
    assert vae.latent_size((40, 16, 24)) == (10, 2, 3)
    assert vae.decode(vae.encode_posterior(clip(40)).mean, 40).shape[2] == 40


def test_published_sizes() -> None:
    with torch.device("meta"):
        published = OpenSoraVAE(VideoVAESettings())
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in published.named_children()}  # fmt: skip
    assert count == {"spatial_vae": 83_653_863, "temporal_vae": 309_687_144}
    assert len(published.state_dict()) == 517


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_fits_at_once_changes_nothing_but_rounding() -> None:
    video = clip(21, 16, 24, batch=2)
    noises = (torch.randn(42, 4, 2, 3), torch.randn(2, 4, 6, 2, 3))
    all_at_once, one_by_one = tiny_vae(budget=EVERYTHING), tiny_vae(budget=MemoryBudget(1))
    want = all_at_once.encode(video, noises=noises)
    assert relative(one_by_one.encode(video, noises=noises), want) < 1e-5
    assert relative(one_by_one.decode(want, 21), all_at_once.decode(want, 21)) < 1e-5


@pytest.mark.parametrize(("height", "width"), [(64, 40), (77, 101)])
@pytest.mark.parametrize("strip_bytes", [1, 40_000])
def test_a_frame_in_strips_is_the_frame_at_once(
    vae: OpenSoraVAE, height: int, width: int, strip_bytes: int
) -> None:
    """Not only away from seams: 1e-5 of the largest value, everywhere."""
    module = vae.spatial_vae.module
    strips = Strips(module, strip_bytes, torch.device("cpu"))
    images = clip(2, height, width, seed=1)[0].transpose(0, 1)
    with torch.no_grad():
        want = module.encode(images).latent_dist.parameters
        z = want[:, :4].clone()
        assert relative(strips.moments(images), want) < 1e-5
        assert relative(strips.decode(z), module.decode(z).sample) < 1e-5
    assert z.equal(want[:, :4])  # inputs are not written to


@pytest.mark.long
def test_a_large_frame_goes_in_strips_by_itself() -> None:
    image = clip(1, 200, 160)
    small, large = tiny_vae(budget=MemoryBudget(2_000_000)), tiny_vae(budget=EVERYTHING)
    calls: list[tuple[int, ...]] = []
    small.spatial_vae.module.encode = lambda x: calls.append(x.shape)
    want = large.encode_posterior(image).mean
    assert relative(small.encode_posterior(image).mean, want) < 1e-5
    assert calls == []  # the undivided network was not used
    assert relative(small.decode(want, 1), large.decode(want, 1)) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("budget", [1 << 40, 2_000_000])  # at once, and in strips
def test_channels_last_gives_the_same_numbers(budget: int) -> None:
    """Weights and images both: 1e-5 of the largest value."""
    image, plain, last = clip(1, 200, 160), tiny_vae(), tiny_vae()
    plain.budget, last.budget = MemoryBudget(budget), MemoryBudget(budget)
    last.spatial_vae.channels_last = True
    layouts: list[bool] = []
    conv2d = torch.nn.functional.conv2d

    def noted(x: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
        layouts.append(weight.is_contiguous(memory_format=torch.channels_last))
        return conv2d(x, weight, *more, **named)

    def note(_layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    want = plain.encode_posterior(image).mean
    decoded = plain.decode(want, 1)
    last.spatial_vae.module.encoder.conv_in.register_forward_pre_hook(note)  # at once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "conv2d", noted)  # in strips
        assert relative(last.encode_posterior(image).mean, want) < 1e-5
        assert relative(last.decode(want, 1), decoded) < 1e-5
    assert layouts
    assert all(layouts)
    last.spatial_vae.channels_last = None  # as on a CPU: the weights are turned back
    assert relative(last.encode_posterior(image).mean, want) < 1e-5
    assert last.spatial_vae.module.encoder.conv_in.weight.is_contiguous()


def test_less_goes_through_at_once_after_memory_ran_out() -> None:
    sizes: list[int] = []

    def network(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 2 * x

    budget = MemoryBudget(1000)
    x = torch.arange(20.0)[:, None]
    assert in_batches(network, x, 100, budget).equal(2 * x)
    assert sizes == [10, 5, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert budget.limit_bytes == 250  # kept: the next call starts there


def test_an_input_too_large_alone_is_one_sentence() -> None:
    def network(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(OutOfMemory, match="too many for the VAE") as caught:
        in_batches(network, torch.zeros(2, 3, 8, 8), 10, MemoryBudget(10))
    assert "memory_gb" in str(caught.value.hint)


def test_strips_become_narrower_while_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    moments = Strips.moments

    def scarce(strips: Strips, x: Tensor) -> Tensor:
        widths.append(strips.strip_bytes)
        if len(widths) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return moments(strips, x)

    monkeypatch.setattr(Strips, "moments", scarce)
    monkeypatch.setattr("trainer.models.vae.spatial.LEAST_BYTES", 1)
    image, vae = clip(1, 64, 64), tiny_vae(budget=MemoryBudget(100_000))
    assert (
        relative(
            vae.encode_posterior(image).mean,
            tiny_vae(budget=EVERYTHING).encode_posterior(image).mean,
        )
        < 1e-5
    )
    assert widths == [6250, 3125, 1562]


def test_other_errors_are_not_taken_for_memory() -> None:
    def network(x: Tensor) -> Tensor:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        in_batches(network, torch.zeros(2, 1), 1, MemoryBudget(10))


# --- chance and precision ----------------------------------------------------------------------


def test_chance_comes_from_the_generator_alone(vae: OpenSoraVAE) -> None:
    video = clip(5)
    first, again, other = (vae.encode(video, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)
    torch.manual_seed(1)
    assert vae.encode(video).equal(first)  # without one, torch's own


@pytest.mark.long
def test_the_same_noise_whatever_fits_into_memory() -> None:
    video = clip(18, batch=2)
    latents = [
        tiny_vae(budget=budget).encode(video, torch.Generator().manual_seed(1))
        for budget in (EVERYTHING, MemoryBudget(1))
    ]
    assert relative(*latents) < 1e-5


def test_a_cached_posterior_stands_for_the_latents(vae: OpenSoraVAE) -> None:
    video = clip(5)
    posterior = vae.encode_posterior(video)
    assert posterior.mean.shape == posterior.logvar.shape == (1, 4, 2, 2, 3)
    # Noise of the frames left out, sampling is that of `encode`.
    noise = torch.randn(1, 4, 2, 2, 3)
    latent = vae.encode(video, noises=(torch.zeros(5, 4, 2, 3), noise))
    assert relative(posterior.at(noise), latent) < 1e-6
    draws = torch.stack([posterior.sample(torch.Generator().manual_seed(s)) for s in range(400)])
    spread = (draws - posterior.mean).square().mean(0) / posterior.logvar.exp()
    assert spread.mean() == pytest.approx(1, abs=0.1)


@pytest.mark.long
def test_bf16_is_near_fp32() -> None:
    """Relative to the fp32 result's RMS: latents 3 %, pixels 5 %, with random weights."""
    exact, rough = tiny_vae(), tiny_vae()
    rough.spatial_vae.bfloat16()
    rough.temporal_vae.bfloat16()
    video = clip(21)
    want = exact.encode_posterior(video).mean
    error = rough.encode_posterior(video).mean - want
    assert error.square().mean().sqrt() < 0.03 * want.square().mean().sqrt()
    pixels = exact.decode(want, 21)
    back = rough.decode(want, 21)
    assert back.dtype == torch.bfloat16
    assert (back - pixels).square().mean().sqrt() < 0.05 * pixels.square().mean().sqrt()


@pytest.mark.long
@pytest.mark.parametrize(
    ("filters", "blocks", "frames", "height"), [(8, 2, 18, 24), (16, 1, 7, 40)]
)
def test_fp32_is_exact_against_fp64(filters: int, blocks: int, frames: int, height: int) -> None:
    temporal = dataclasses.replace(SETTINGS.temporal, filters=filters, num_res_blocks=blocks)
    settings = dataclasses.replace(SETTINGS, temporal=temporal)
    single, double = tiny_vae(settings), tiny_vae(settings)
    double.spatial_vae.double()
    double.temporal_vae.double()
    video = clip(frames, height)
    want = double.encode_posterior(video).mean
    assert relative(single.encode_posterior(video).mean, want) < 1e-5
    assert relative(single.decode(want, frames), double.decode(want, frames)) < 2e-5


# --- weights and settings ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(vae: OpenSoraVAE, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vae") / "saved"
    save_vae(vae, path)
    return path


def config(**changes: Any) -> VaeConfig:
    return dataclasses.replace(VaeConfig(), **changes)


def test_a_config_names_the_weights(vae: OpenSoraVAE, folder: Path) -> None:
    built = build_vae(config(from_pretrained=str(folder)))
    assert isinstance(built, OpenSoraVAE)
    assert built.settings == vae.settings
    assert built.encode_posterior(clip(5)).mean.equal(vae.encode_posterior(clip(5)).mean)
    assert not any(p.requires_grad for p in built.parameters())
    assert not built.training


@pytest.mark.long
def test_a_model_trains_on_its_latents(folder: Path, tmp_path: Path) -> None:
    words = ["--vae.type", "OpenSoraVAE_V1_2", "--vae.from-pretrained", str(folder),
             "--model.patch-size", "1,2,2", "--model.hidden-size", "32", "--model.num-heads", "2",
             "--mask-ratios.image_head", "1.0"]  # fmt: skip
    settings = configuration.load("demo", words)
    make_tiny_text_encoder(settings, tmp_path, ["a digit"])
    parts = build_parts(settings, tmp_path)
    z = parts.vae.encode(clip(17, 16, 16, batch=2))
    y, mask = parts.text.encode(["a digit", "a"])
    sizes = {name: torch.full((2,), value) for name, value in (("fps", 8.0), ("height", 16.0), ("width", 16.0), ("num_frames", 17.0))}  # fmt: skip
    given = parts.masks.draw(2, z.shape[2])
    assert given is not None
    losses = parts.flow.training_losses(parts.model, z, {"y": y, "mask": mask, **sizes}, mask=given)
    losses.mean().backward()
    assert parts.model.x_embedder.proj.weight.grad is not None
    assert parts.vae.decode(z, 17).shape == (2, 3, 17, 16, 16)


def test_shift_scale_chunk_and_memory_of_the_config_win(folder: Path, vae: OpenSoraVAE) -> None:
    built = build_vae(
        config(from_pretrained=str(folder), shift=(0.0,) * 4, scale=(2.0,) * 4, micro_frame_size=8, memory_gb=0.5)
    )  # fmt: skip
    assert isinstance(built, OpenSoraVAE)
    assert built.budget.limit_bytes == 500_000_000
    assert built.latent_size((17, 16, 16))[0] == 5  # 2 + 2 + 1
    z = vae.encode_posterior(clip(5)).mean * vae.scale + vae.shift
    assert relative(built.encode_posterior(clip(5)).mean, z / 2) < 1e-5


def test_bf16_weights_keep_shift_and_scale(folder: Path, vae: OpenSoraVAE) -> None:
    built = load_vae(folder, dtype=torch.bfloat16)
    assert built.dtype == torch.bfloat16
    assert built.scale.equal(vae.scale)


def test_attention_of_old_checkpoints_is_renamed(vae: OpenSoraVAE, tmp_path: Path) -> None:
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    weights = {}
    for name, tensor in vae.state_dict().items():
        for new, before in old.items():
            if f".{new}." in name:
                name = name.replace(f".{new}.", f".{before}.")
                tensor = tensor[:, :, None, None] if tensor.ndim == 2 else tensor
        weights[name] = tensor.clone()
    renamed = modern_names(weights)
    assert {k: v.shape for k, v in renamed.items()} == {k: v.shape for k, v in vae.state_dict().items()}  # fmt: skip
    save_vae(vae, tmp_path)
    save_file(weights, tmp_path / "model.safetensors")
    assert (
        load_vae(tmp_path).encode_posterior(clip(1)).mean.equal(vae.encode_posterior(clip(1)).mean)
    )


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    del weights["temporal_vae.encoder.conv_in.conv.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 missing"):
        load_vae(tmp_path)


def test_no_weights_and_wrong_sizes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vae\.from_pretrained must name the weights"):
        build_vae(config())
    with pytest.raises(CheckpointError, match="there are no weights at"):
        build_vae(config(from_pretrained=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"vae\.channels is 1 \(luma\) or 3"):
        build_vae(config(type="identity", channels=2))
    with pytest.raises(ConfigError, match=r"vae\.shift has 2 values"):
        OpenSoraVAE(dataclasses.replace(SETTINGS, shift=(0.0, 1.0)))


def test_missing_diffusers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("diffusers"):
            raise ImportError("No module named 'diffusers'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="needs diffusers, which cannot be imported"):
        tiny_vae()


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("video", "sentence"),
    [
        (torch.zeros(1, 4, 5, 16, 16), r"a video is \[B, 3, T, H, W\] of floats"),
        (torch.zeros(3, 5, 16, 16), r"a video is \[B, 3, T, H, W\]"),
        (torch.zeros(1, 3, 5, 16, 16, dtype=torch.uint8), "not uint8"),
        (torch.zeros(1, 3, 0, 16, 16), "needs 1 frame of 8 x 8 pixels at least"),
        (torch.zeros(1, 3, 5, 16, 7), "needs 1 frame of 8 x 8 pixels at least"),
    ],
)
def test_what_is_no_video_is_refused(vae: OpenSoraVAE, video: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        vae.encode(video)


@pytest.mark.parametrize(
    ("shape", "frames", "sentence"),
    [
        ((1, 4, 5, 2, 2), 18, "a latent of 5 frames cannot give 18: those need 6"),
        ((1, 4, 5, 2, 2), 0, "cannot give 0"),
        ((1, 8, 5, 2, 2), 17, r"a latent is \[B, 4, T, H, W\], not \[1, 8, 5, 2, 2\]"),
    ],
)
def test_what_is_no_latent_is_refused(
    vae: OpenSoraVAE, shape: tuple[int, ...], frames: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        vae.decode(torch.zeros(shape), frames)


# --- pixels as latents -------------------------------------------------------------------------


def test_pixels_as_latents() -> None:
    video = clip(3)
    luma, colour = IdentityVAE(1), IdentityVAE(3)
    assert colour.encode(video) is video
    grey = luma.encode(video)
    assert grey.shape == (1, 1, 3, 16, 24)
    assert luma.decode(grey, 3).shape == video.shape
    assert luma.latent_size((3, 16, 24)) == (3, 16, 24)
    posterior = luma.encode_posterior(video)
    assert posterior.sample().equal(grey)  # no spread
    with pytest.raises(ValueError, match="cannot give 4"):
        luma.decode(grey, 4)


def test_a_posterior_moves_and_scales_as_its_value() -> None:
    posterior = Posterior(torch.tensor([1.0]), torch.tensor([math.log(4.0)]))
    changed = posterior.moved(torch.tensor([2.0])).scaled(3.0)
    assert changed.at(torch.tensor([1.0])).tolist() == pytest.approx([15.0])  # (1 + 2*1 + 2) * 3
