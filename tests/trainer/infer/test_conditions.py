"""Given frames: strategies, references, loops. On the real classes with the identity VAE."""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.data.clips import write_clip
from tests.trainer.infer.infer_run import make_run
from tests.trainer.models.tiny_vae import tiny_vae
from trainer.components import Parts, build_parts
from trainer.config import load as configuration
from trainer.data.video.decode import Window
from trainer.data.video.mp4 import write_mp4
from trainer.errors import ConfigError
from trainer.infer.conditions import (
    Group,
    ReferenceFiles,
    ReferenceReader,
    chunk_of,
    frames_of,
    parse_strategy,
    place_references,
    snap,
)
from trainer.infer.jobs import Job, Settings, settings_of
from trainer.infer.prompts import parse_prompts
from trainer.infer.sampling import Sampler
from trainer.models.stdit import build_stdit
from trainer.models.vae.interface import IdentityVAE
from trainer.weights.load import load_weights, read_checkpoint

CPU = torch.device("cpu")


class ChunkedVAE(IdentityVAE):
    """Open-Sora's lengths: 17 frames are 5 latents that stand alone; pixels stay as they are."""

    micro_frame_size = 17

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        frames, height, width = video_size
        return 5 * (frames // 17) + -(-(frames % 17) // 4), height // 8, width // 8


def test_a_strategy_is_upstreams_six_numbers_with_its_defaults() -> None:
    assert parse_strategy("", "here", 0) == ()
    assert parse_strategy("0", "here", 1) == (Group(0, 0, 0, 0, 1, 0.0),)
    assert parse_strategy("0,1,0,-1,1;1, 0, -5, 0, 5, 0.3", "here", 2) == (
        Group(0, 1, 0, -1, 1, 0.0),
        Group(1, 0, -5, 0, 5, 0.3),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,0,0,0,1,0,0", r"group 0 \('0,0,0,0,1,0,0'\) has 7 numbers; it is loop, reference"),
        ("0;a", r"group 1 \('a'\): loop must be an integer, not 'a'"),
        ("0,0,0,0,1,x", "edit ratio must be a number from 0 to 1, not 'x'"),
        ("0,0,0,0,1,2", "edit ratio 0 to 1; not 0, 1, 2"),
        ("0,0,0,0,0", "length at least 1"),
        ("-1", "loop is at least 0"),
        ("0,2", "asks for reference 2, counted from 0, of 2"),
        (";", "loop must be an integer, not ''"),
    ],
)
def test_wrong_strategies_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^prompt 3: mask strategy.*{said}"):
        parse_strategy(text, "prompt 3", 2)


@pytest.mark.parametrize(
    ("value", "align", "length", "place"),
    [(0, 5, 15, 0), (2, 5, 15, 0), (3, 5, 15, 5), (14, 5, 15, 10), (7, 5, 15, 5), (7, 1, 15, 7)],
)
def test_starts_snap_to_chunks_as_upstream(value: int, align: int, length: int, place: int) -> None:
    assert snap(value, align, length) == place


def test_references_are_put_where_the_strategy_says() -> None:
    z = torch.zeros(2, 15, 3, 3)
    still, clip = torch.ones(2, 1, 3, 3), torch.arange(2.0, 12.0)[None, :, None, None].expand(2, 10, 3, 3)  # fmt: skip
    groups = parse_strategy("0;0,1,-5,-5,9,0.4;1,1", "here", 2)
    placed, edit = place_references(z, [still, clip], groups, 0, 5, "here")
    assert edit.tolist() == [0.0] + [1.0] * 9 + [pytest.approx(0.4)] * 5
    assert placed[0, :, 0, 0].tolist() == [1.0] + [0.0] * 9 + [7.0, 8.0, 9.0, 10.0, 11.0]
    assert not z.any()  # the noise itself is not written to
    with pytest.raises(ConfigError, match="here: target start 15 is outside of 15 latent frames"):
        place_references(z, [still], parse_strategy("0,0,0,15", "here", 1), 0, 5, "here")


def test_latent_frames_count_as_the_vae_counts_them() -> None:
    vae = ChunkedVAE()
    assert [frames_of(vae, latents) for latents in (1, 5, 6, 10)] == [4, 17, 21, 34]
    assert frames_of(IdentityVAE(), 7) == 7
    assert (chunk_of(vae), chunk_of(IdentityVAE())) == (5, 1)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parts, Settings]:
    """Parts with the checkpoint's weights, patches one frame thick."""
    file, checkpoint = make_run(tmp_path_factory.mktemp("run"))
    config = configuration.load(file)
    parts = build_parts(config, checkpoint.parent)
    weights, _ = read_checkpoint(checkpoint)
    load_weights(parts.model, weights, checkpoint)
    return parts, replace(settings_of(config), batch_size=4)


def make(parts: Parts, settings: Settings, *lines: str) -> list[np.ndarray]:
    prompts = parse_prompts(lines)
    jobs = [Job(prompt, 0, Path(str(prompt.index))) for prompt in prompts]
    return [frames for _, frames in Sampler(parts, settings, CPU).videos(jobs)]


def levels(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other).max())


@pytest.fixture
def clip(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A grey video whose frames all differ, and its pixels."""
    grey = np.linspace(30, 220, 8)[:, None, None, None] + np.arange(16)[None, :, None, None]
    frames = np.broadcast_to(grey.clip(0, 255).astype(np.uint8), (8, 16, 16, 3))
    path = tmp_path / "clip.mp4"
    write_mp4(path, np.ascontiguousarray(frames), 8)
    return path, frames


@pytest.mark.long
def test_a_reference_becomes_the_frames_it_is_given_as(
    small: tuple[Parts, Settings], clip: tuple[Path, np.ndarray]
) -> None:
    path, pixels = clip
    plain, kept, half = make(
        *small,
        "digit one",
        f'digit one {{"reference_path": "{path}", "mask_strategy": "0,0,4,0,4"}}',
        f'digit one {{"reference_path": "{path}", "mask_strategy": "0,0,4,0,4,0.5"}}',
    )
    assert levels(kept[:4], pixels[4:]) <= 6  # the codec's loss
    assert levels(kept[4:], pixels[4:]) > 20  # the rest is made
    assert levels(half[:4], pixels[4:]) > 6  # half of the way anew
    # Beside conditioned videos a plain one is what it is alone.
    (alone,) = make(*small, "digit one")
    assert levels(plain, alone) <= 1


@pytest.mark.long
def test_a_still_without_a_strategy_is_the_first_frame(
    small: tuple[Parts, Settings], tmp_path: Path
) -> None:
    from PIL import Image

    still = np.full((32, 48, 3), 90, np.uint8)
    Image.fromarray(still).save(tmp_path / "still.jpg")
    (video,) = make(*small, f'digit two {{"reference_path": "{tmp_path / "still.jpg"}"}}')
    assert levels(video[0], still[:16, :16]) <= 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["still.png", "clip.mp4"])
def test_every_way_of_scaling_gives_a_reference_the_same_brightness(
    small: tuple[Parts, Settings], tmp_path: Path, name: str
) -> None:
    from PIL import Image

    parts, settings = small
    grey = np.full((1, 48, 64, 3), 200, np.uint8)
    if name.endswith("png"):
        Image.fromarray(grey[0]).save(tmp_path / name)
    else:
        write_mp4(tmp_path / name, grey, 8)
    line = f'digit two {{"reference_path": "{tmp_path / name}"}}'
    for resize in ("bilinear", "area", "torch"):
        (video,) = make(parts, replace(settings, resize=resize), line)
        assert levels(video[0], grey[0, :16, :16]) <= 3, resize


def test_loops_go_on_from_the_last_frames_and_drop_them_once(small: tuple[Parts, Settings]) -> None:
    parts, settings = small
    settings = replace(settings, loop=3, condition_frame_length=4)
    seen: list[Tensor] = []
    whole = parts.vae.decode
    parts.vae.decode = lambda z, n: seen.append(z) or whole(z, n)  # type: ignore[method-assign,func-returns-value]
    try:
        (video,) = make(parts, settings, "|0| digit one |2| digit two")
    finally:
        del parts.vae.decode  # type: ignore[method-assign]
    assert video.shape == (8 + 2 * 4, 16, 16, 3)
    for before, after in itertools.pairwise(seen):
        assert torch.allclose(after[:, :, :4], before[:, :, -4:].clamp(-1, 1), atol=1e-6)
    (first,) = make(parts, replace(settings, loop=1), "digit one")
    assert levels(video[:8], first) == 0


@pytest.mark.long
def test_the_batch_does_not_change_a_video(small: tuple[Parts, Settings]) -> None:
    parts, settings = small
    settings = replace(settings, loop=2, condition_frame_length=4, condition_frame_edit=0.5)
    lines = ["digit one", "digit two", "digit one", "digit two"]
    for one, other in zip(
        make(parts, settings, *lines),
        make(parts, replace(settings, batch_size=1), *lines),
        strict=True,
    ):
        assert levels(one, other) <= 1  # another batch, other rounding


def test_a_length_that_is_no_whole_chunk_is_refused(small: tuple[Parts, Settings]) -> None:
    parts, settings = small
    chunked = replace(parts, vae=ChunkedVAE(1))
    settings = replace(settings, num_frames=51, height=64, width=64, loop=2)
    Sampler(chunked, settings, CPU)
    with pytest.raises(ConfigError, match="3 must be a multiple of 5"):
        Sampler(chunked, replace(settings, condition_frame_length=3), CPU)
    with pytest.raises(ConfigError, match="smaller than one latent"):
        Sampler(chunked, replace(settings, height=4), CPU)


@pytest.mark.slow
def test_conditions_go_through_open_soras_vae_in_whole_chunks(
    small: tuple[Parts, Settings], tmp_path: Path
) -> None:
    from PIL import Image

    parts, settings = small
    vae = tiny_vae()
    torch.manual_seed(0)
    options = {**vars_of(parts.model.config), "in_channels": 4, "patch_size": (1, 2, 2)}
    latent_parts = replace(parts, vae=vae, model=build_stdit("STDiT3", **options))
    settings = replace(
        settings, num_frames=34, height=16, width=24, loop=2, steps=1, align=None, cfg_scale=1.0
    )
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(tmp_path / "still.png")
    seen: list[tuple[Tensor, Tensor]] = []
    whole = vae.decode

    def decode(z_BCTHW: Tensor, num_frames: int) -> Tensor:
        video = whole(z_BCTHW, num_frames)
        seen.append((z_BCTHW, video.clamp(-1, 1)))
        return video

    vae.decode = decode  # type: ignore[method-assign]
    (video,) = make(latent_parts, settings, f'a cat {{"reference_path": "{tmp_path}/still.png"}}')
    assert video.shape == (34 + 17, 16, 24, 3)
    (first, first_video), (second, _) = seen
    assert first.shape == (1, 4, 10, 2, 3)
    still = torch.full((1, 3, 1, 16, 24), 90 / 127.5 - 1)
    assert torch.allclose(first[:, :, :1], vae.encode_posterior(still).mean, atol=1e-5)
    # 17 frames are a chunk of their own: encoded alone they are the whole clip's last latents.
    carried = vae.encode_posterior(first_video).mean[:, :, -5:]
    assert torch.allclose(second[:, :, :5], carried, atol=1e-4)
    assert not torch.allclose(second[:, :, 5:], first[:, :, 5:], atol=1e-2)


@pytest.mark.long
def test_a_reference_counted_from_the_end_is_read_from_there(
    small: tuple[Parts, Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decoded and encoded from its first frame on."""
    path = str(write_clip(tmp_path / "long.mp4", 70, threads="1", preset="ultrafast"))
    vae = tiny_vae()
    settings = replace(small[1], height=16, width=24)
    reader = ReferenceReader(vae, settings, torch.device("cpu"))
    windows: list[Window] = []
    real = ReferenceFiles.frames

    def frames(self: ReferenceFiles, path: str, window: Window, where: str) -> Any:
        windows.append(window)
        return real(self, path, window, where)

    monkeypatch.setattr(ReferenceFiles, "frames", frames)
    noise = torch.zeros(4, 20, 2, 3)
    with closing(reader.files):
        for strategy in ("0,0,-5,0,5,0", "0,0,-9,0,5,0;0,0,5,10,5,0", "0,0,3,0,4,0"):
            groups = parse_strategy(strategy, "prompt 1", 1)
            part = reader.read(path, 0, groups, 5, "prompt 1")
            read = windows.pop()
            whole = reader.read(path, 0, [Group(0, 0, 0, 0, 20, 0.0), *groups], 5, "prompt 1")
            windows.pop()
            placed = [
                place_references(noise.clone(), [z], groups, 0, 5, "prompt 1")[0]
                for z in (part, whole)
            ]
            torch.testing.assert_close(placed[0], placed[1], atol=1e-5, rtol=0.0)
            if strategy == "0,0,-5,0,5,0":
                assert (read.start, read.frames) == (51, 19)  # 3 chunks of 17 are not read
        with pytest.raises(ConfigError, match="is a URL, and files only are read"):
            reader.files.length("https://host/a.mp4", "prompt 1")


def vars_of(config: Any) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}


@pytest.mark.long
def test_references_that_are_none_are_named_with_their_prompt(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "text.mp4").write_text("no video")
    with closing(ReferenceFiles()) as known:
        for name, why in (("gone", "No such file"), ("pipe", "not a regular"), ("text", "Invalid")):
            path = str(tmp_path / f"{name}.mp4")
            with pytest.raises(ConfigError, match=f"prompt 3: the reference {path}.*{why}"):
                known.length(path, "prompt 3")
