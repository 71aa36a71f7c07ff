"""STDiT3's behaviour, on the real class with small numbers. Its numbers are in tests/parity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.models.stdit_cases import SMALL, batch, run, small_model
from trainer.errors import ConfigError
from trainer.models.attention import calls
from trainer.models.stdit import STDiT3Config, build_stdit

# B batch · C channels · T,H,W latent frames, height, width · L text tokens


def test_output_has_the_inputs_size_whatever_the_patch() -> None:
    for patch, size in [((1, 2, 2), (3, 5, 7)), ((2, 2, 2), (5, 5, 4)), ((4, 4, 4), (8, 16, 16))]:
        model = small_model(patch_size=patch)
        assert run(model, batch(size)).shape == (2, 6, *size)
    assert run(small_model(pred_sigma=False), batch()).shape == (2, 3, 4, 6, 6)


def test_values_beyond_the_edge_count_as_zero() -> None:
    model, inputs = small_model(), batch((4, 5, 6))
    padded = nn.functional.pad(inputs["x_BCTHW"], (0, 0, 0, 1))
    assert torch.equal(run(model, inputs), run(model, inputs, x_BCTHW=padded)[:, :, :, :5])


def test_an_all_true_frame_mask_is_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small_model(), batch()
    without = run(model, inputs)
    calls = []
    monkeypatch.setattr(model.t_embedder, "forward", _counted(model.t_embedder, calls))
    masked = run(model, inputs, x_mask=torch.ones(2, 4, dtype=torch.bool))
    assert torch.equal(without, masked)
    assert len(calls) == 1  # timestep 0 was not even embedded


def _counted(module: nn.Module, calls: list[int]) -> Any:
    forward = module.forward

    def counted(*args: Any) -> Any:
        calls.append(1)
        return forward(*args)

    return counted


def test_blocks_see_condition_frames_at_timestep_zero() -> None:
    model = small_model()
    with torch.no_grad():  # no way from frame to frame
        for block in model.temporal_blocks:
            block.get_parameter("attn.proj.weight").zero_()
    tokens: list[Tensor] = []
    model.final_layer.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    inputs = batch()
    mask = torch.tensor([[False, True, True, True]] * 2)
    run(model, inputs, x_mask=mask)
    run(model, inputs, x_mask=mask, timestep_B=inputs["timestep_B"] + 50)
    assert torch.equal(tokens[0][:, 0], tokens[1][:, 0])
    assert not torch.allclose(tokens[0][:, 1:], tokens[1][:, 1:])


def test_the_final_layer_modulates_condition_frames_twice() -> None:
    final, x = small_model().final_layer, torch.randn(1, 2, 5, 32)
    t, t0 = torch.randn(1, 32), torch.randn(1, 32)
    got = final(x, t, t0, torch.tensor([[True, False]]))
    once = final(x, t, None, None)
    assert torch.equal(got[:, 0], once[:, 0])
    twice = final.linear(final._modulated(final._modulated(x, t), t0))
    assert torch.equal(got[:, 1], twice[:, 1])


def test_a_frame_mask_fits_patches_of_several_frames() -> None:
    model, inputs = small_model(patch_size=(2, 2, 2)), batch((5, 4, 4))
    per_frame = torch.tensor([[False, False, False, True, True]] * 2)
    per_token = torch.tensor([[False, True, True]] * 2)  # a token is noised if a frame of it is
    assert torch.equal(run(model, inputs, x_mask=per_frame), run(model, inputs, x_mask=per_token))


def test_only_the_first_rows_size_counts() -> None:
    model, inputs = small_model(), batch()
    same = run(model, inputs)
    assert torch.equal(same, run(model, inputs, height=torch.tensor([256.0, 999.0])))
    assert not torch.equal(same, run(model, inputs, height=torch.tensor([512.0, 256.0])))


def test_padding_of_captions_is_not_seen() -> None:
    model, inputs = small_model(), batch()
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    noise = torch.randn(2, 1, 6, 16) * (1 - mask)[:, None, :, None]
    one = run(model, inputs, mask=mask)
    assert torch.equal(one, run(model, inputs, mask=mask, y=inputs["y"] + noise))
    assert not torch.allclose(one, run(model, inputs))


def test_a_mask_and_frame_rate_of_fewer_rows_repeat_for_guidance() -> None:
    model, inputs = small_model(), batch()
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    twice = {name: torch.cat([value, value]) for name, value in inputs.items()}
    short = {**twice, "mask": mask, "fps": inputs["fps"]}
    assert torch.equal(run(model, short), run(model, twice, mask=torch.cat([mask, mask])))


def test_cached_text_features_give_the_same_as_captions() -> None:
    model, inputs = small_model(), batch()
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        projected = model.y_embedder(inputs["y"])[:, 0]
    packed = projected[mask.bool()][None]
    cached = small_model(skip_y_embedder=True)
    got = run(cached, inputs, y=packed, mask=[2, 4])
    assert torch.allclose(got, run(model, inputs, mask=mask), atol=1e-6)
    with pytest.raises(ValueError, match="packed text has 6 tokens"):
        run(cached, inputs, y=packed, mask=[2, 5])


def test_training_drops_captions_by_one_draw_each() -> None:
    model, inputs = small_model(class_dropout_prob=0.5).train(), batch(count=8)
    torch.manual_seed(3)
    dropped = torch.rand(8) < 0.5
    assert 0 < dropped.sum() < 8
    null = model.y_embedder.y_embedding.expand_as(inputs["y"])
    by_hand = torch.where(dropped[:, None, None, None], null, inputs["y"])
    torch.manual_seed(3)
    in_training = run(model, inputs)
    assert torch.equal(in_training, run(model.eval(), inputs, y=by_hand))


def test_captions_of_another_length_than_the_null_text_are_refused_in_training() -> None:
    inputs = batch()
    with pytest.raises(ValueError, match="encode with max_length 6"):
        run(small_model().train(), inputs, y=inputs["y"][:, :, :4], mask=None)


def test_a_fresh_models_temporal_blocks_do_nothing() -> None:
    torch.manual_seed(0)
    model = build_stdit("STDiT3", **SMALL).eval()
    x = torch.randn(2, 4, 9, 32)
    text, t = torch.randn(2, 6, 32), torch.randn(2, 1, 6, 32)
    block = model.temporal_blocks[0]
    assert torch.equal(block(x, text, None, t, model.rope(4)), x)
    assert not torch.equal(model.spatial_blocks[0](x, text, None, t, None), x)


def test_frames_too_large_for_one_launch_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small_model(), batch()
    want = run(model, inputs)
    monkeypatch.setattr(calls, "MOST_HEADS", 17)
    torch.testing.assert_close(run(model, inputs), want, rtol=1e-6, atol=1e-6)


def test_freezing() -> None:
    temporal = small_model(only_train_temporal=True)
    trained = {name.split(".")[0] for name, p in temporal.named_parameters() if p.requires_grad}
    assert trained == {"temporal_blocks"}
    frozen = small_model(freeze_y_embedder=True)
    fixed = {name.split(".")[0] for name, p in frozen.named_parameters() if not p.requires_grad}
    assert fixed == {"y_embedder", "rope"}


def test_unknown_names_and_impossible_numbers_are_refused_with_help() -> None:
    with pytest.raises(ConfigError, match="hiden_size") as error:
        build_stdit("STDiT3", hiden_size=3)
    assert error.value.hint == "did you mean hidden_size?"
    with pytest.raises(ConfigError, match="STDiT3-XL/2"):
        build_stdit("STDiT3-XL")
    with pytest.raises(ConfigError, match="must be a multiple of num_heads"):
        build_stdit("STDiT3", hidden_size=32, num_heads=3)
    with pytest.raises(ConfigError, match="there is no sequence parallelism"):
        build_stdit("STDiT3", enable_sequence_parallelism=True)


def test_drop_path_keeps_the_mean_and_drops_later_blocks_more_often() -> None:
    model = small_model(depth=3, drop_path=0.5)
    kept = model.draw_kept(4000, torch.Generator().manual_seed(0))
    assert kept is not None
    torch.testing.assert_close(kept.mean((0, 2)), torch.ones(6).double(), atol=0.05, rtol=0)
    dropped = (kept == 0).double().mean((0, 2)).tolist()
    assert dropped == pytest.approx([0, 0, 0.25, 0.25, 0.5, 0.5], abs=0.05)
    assert small_model(depth=3).draw_kept(4000) is None


def test_drop_path_leaves_branches_out_of_the_clips_it_names_and_only_in_training() -> None:
    model, inputs = small_model(drop_path=0.5, class_dropout_prob=0.0), batch()
    kept = torch.ones(2, 4, 2)
    with torch.no_grad():
        want = model.eval()(**inputs)
        model.train()
        torch.testing.assert_close(model(**inputs, kept=kept), want)
        kept[1, 2, 1] = 0
        found = model(**inputs, kept=kept)
        torch.testing.assert_close(found[0], want[0])
        assert not torch.allclose(found[1], want[1])
        torch.manual_seed(0)
        drawn = model(**inputs)
        torch.manual_seed(0)
        torch.testing.assert_close(model(**inputs, kept=model.draw_kept(2)), drawn)


def test_config_takes_patches_as_a_list() -> None:
    assert STDiT3Config(patch_size=[1, 2, 2]).patch_size == (1, 2, 2)  # type: ignore[arg-type]
