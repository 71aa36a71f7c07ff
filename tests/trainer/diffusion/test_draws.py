"""What a microbatch draws: a function of seed and place, drawn ahead or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.config.keys import SchedulerConfig
from trainer.diffusion.draws import Drawing, Draws
from trainer.diffusion.frame_masks import build_masks
from trainer.diffusion.rectified_flow import RectifiedFlow

SHAPE = (3, 4, 5, 2, 6)
SIZES = {name: torch.full((3,), 64.0) for name in ("height", "width", "num_frames")}
PLACE = (0, 7)


@dataclass
class LikeOnAGpu(Drawing):
    """Draws ahead, and moves nothing."""

    drawn: list[tuple[Any, bool]] = field(default_factory=list)

    def _draw(self, place: Any, shape: Any, *, pin: bool = False) -> Draws:
        self.drawn.append((place, pin))
        return super()._draw(place, shape)

    def _moved(self, values: Tensor) -> Tensor:
        return values


def drawing(kind: type[Drawing] = Drawing, device: Any = "cpu", **options: Any) -> Any:
    flow = RectifiedFlow(**vars(SchedulerConfig(**options)))
    masks = build_masks({"quarter_head": 0.5, "random": 0.3})
    where = torch.device(device) if isinstance(device, str) else device
    return kind(
        42, flow, masks, where, lambda clips, generator: torch.rand(clips, 2, generator=generator)
    )


@pytest.mark.parametrize("method", ["uniform", "logit-normal"])
def test_draws_are_those_of_torchs_generator_one_after_another(method: str) -> None:
    one = drawing(sample_method=method)
    given = one.take(PLACE, torch.zeros(SHAPE), SIZES)
    later = torch.rand(5)

    drawing(sample_method=method).take(PLACE, torch.zeros(SHAPE), SIZES)
    torch.manual_seed(torch.initial_seed())  # that of the microbatch
    mask = one.masks.draw(SHAPE[0], SHAPE[2])
    times = one.flow.transform(one.flow.sample_timesteps(SHAPE[0]), torch.zeros(SHAPE), SIZES)
    noise = torch.randn(SHAPE)
    assert torch.equal(given.mask, mask)
    assert torch.equal(given.t, times)
    assert torch.equal(given.noise, noise)
    assert torch.equal(later, torch.rand(5))


def test_microbatches_and_seeds_differ_and_the_same_one_does_not() -> None:
    z = torch.zeros(SHAPE)
    first, again, other = (drawing().take(place, z, SIZES) for place in (PLACE, PLACE, (1, 7)))
    assert torch.equal(first.noise, again.noise)
    assert torch.equal(first.kept, again.kept)
    for ours, theirs in zip(first[1:], other[1:], strict=True):  # frames may be given in both
        assert not torch.equal(ours, theirs)
    another = drawing()
    another.seed = 43
    assert not torch.equal(first.noise, another.take(PLACE, z, SIZES).noise)


def test_stochastic_depth_changes_no_other_draw() -> None:
    with_it, without = drawing(), drawing()
    without.draw_kept = lambda clips, generator: None
    found = []
    for one in (with_it, without):
        given = one.take(PLACE, torch.zeros(SHAPE), SIZES)
        found.append((*given[:3], torch.rand(5)))
    assert given.kept is None
    assert given.of(slice(1, 2)).kept is None
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_encoding_has_a_seed_of_its_own() -> None:
    one = drawing()
    one.seed_for_encoding(PLACE)
    encoding = torch.initial_seed()
    one.take(PLACE, torch.zeros(SHAPE), SIZES)
    assert torch.initial_seed() != encoding


def test_drawn_ahead_is_the_same_and_drawn_once() -> None:
    wanted = drawing().take(PLACE, torch.zeros(SHAPE), SIZES)
    gpu = drawing(LikeOnAGpu, SimpleNamespace(type="cuda"))
    gpu.ahead(PLACE, SHAPE)
    assert gpu.drawn == [(PLACE, True)]
    given = gpu.take(PLACE, torch.zeros(SHAPE), SIZES)
    assert len(gpu.drawn) == 1
    for ours, theirs in zip(given, wanted, strict=True):
        assert torch.equal(ours, theirs)
    gpu.take(PLACE, torch.zeros(SHAPE), SIZES)
    assert len(gpu.drawn) == 2  # each is used once


@pytest.mark.parametrize(("place", "count"), [((0, 8), 3), (PLACE, 1)])
def test_another_microbatch_or_shape_is_drawn_anew(place: Any, count: int) -> None:
    gpu = drawing(LikeOnAGpu, SimpleNamespace(type="cuda"))
    gpu.ahead(PLACE, SHAPE)
    z = torch.zeros(count, *SHAPE[1:])
    sizes = {name: value[:count] for name, value in SIZES.items()}
    given, wanted = gpu.take(place, z, sizes), drawing().take(place, z, sizes)
    assert torch.equal(given.noise, wanted.noise)
    assert given.noise.shape == z.shape


def test_a_cpu_draws_nothing_ahead() -> None:
    one = drawing(LikeOnAGpu)
    one.ahead(PLACE, SHAPE)
    assert one.drawn == []
