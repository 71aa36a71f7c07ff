"""Captions to features, with a real T5 made offline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.trainer.models.live_bytes import LiveBytes
from trainer.components import build_text_encoder
from trainer.config.load import load
from trainer.data import digits
from trainer.errors import ConfigError, OutOfMemory
from trainer.models.text import TextEncoder, build_tiny_t5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_t5(tmp_path_factory.mktemp("t5") / "tiny", digits.prompts(), d_model=64)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TextEncoder:
    return TextEncoder.from_folder(folder, max_length=8)


def test_features_are_padded_to_one_length_with_their_mask(encoder: TextEncoder) -> None:
    y, mask = encoder.encode(["handwritten digit three moving left", "digit three"])
    assert y.shape == (2, 1, 8, 64)
    assert mask.dtype == torch.int64
    assert mask.sum(1).tolist() == [6, 3]  # words and the end token
    assert encoder.channels == 64


def test_the_untrained_encoder_keeps_the_word(encoder: TextEncoder) -> None:
    y, _ = encoder.encode([f"handwritten digit {word} moving up" for word in digits.WORDS])
    words_ND = torch.nn.functional.normalize(y[:, 0, 2], dim=-1)
    alike = words_ND @ words_ND.T
    assert torch.allclose(alike, torch.eye(10), atol=0.05)
    same, _ = encoder.encode(["digit seven", "moving seven left"])
    assert torch.allclose(same[0, 0, 1], same[1, 0, 1], atol=0.05)


def test_features_have_the_scale_that_was_asked_for(folder: Path, tmp_path: Path) -> None:
    for scale in (1.0, 4.0):
        small = build_tiny_t5(tmp_path / str(scale), ["one two"], d_model=16, feature_scale=scale)
        y, _ = TextEncoder.from_folder(small, 3).encode(["one two"])
        assert y.square().mean().sqrt() == pytest.approx(scale, rel=0.05)


def test_padding_changes_no_feature_and_holds_zeros(folder: Path, encoder: TextEncoder) -> None:
    longer = TextEncoder.from_folder(folder, max_length=30)
    texts = ["handwritten digit three moving left", "digit three"]
    (y, mask), (y_long, mask_long) = encoder.encode(texts), longer.encode(texts)
    assert y_long.shape == (2, 1, 30, 64)
    assert mask_long[:, :8].equal(mask)
    assert torch.allclose(y_long[:, :, :8], y, atol=1e-6)
    assert not y_long[:, 0][mask_long == 0].any()
    # As if the encoder had read every padding token, which is what upstream lets it do.
    tokens = longer.tokenizer(texts, max_length=30, padding="max_length", return_tensors="pt")
    read = longer.model(**tokens).last_hidden_state
    assert torch.allclose(y_long[:, 0][mask_long == 1], read[mask_long == 1], atol=1e-6)


def test_padding_comes_last_whatever_the_tokenizer_says(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "left"))
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "padding_side": "left"}))
    texts = ["a red circle moves left", "a"]
    found, wanted = (TextEncoder.from_folder(one, 8).encode(texts) for one in (other, folder))
    assert found[1].tolist() == wanted[1].tolist()
    assert found[1].diff().max() <= 0
    torch.testing.assert_close(found[0], wanted[0])


def test_an_empty_text_is_its_end_token(encoder: TextEncoder) -> None:
    y, mask = encoder.encode(["", "digit three"])
    assert mask.sum(1).tolist() == [1, 3]
    assert y[0, 0, 0].any()


def test_bf16_is_near_fp32(folder: Path, encoder: TextEncoder) -> None:
    """Relative to the fp32 features' RMS: 2 %."""
    rough = TextEncoder.from_folder(folder, 8, torch.bfloat16)
    want = encoder.encode(["handwritten digit three moving left"])[0]
    got = rough.encode(["handwritten digit three moving left"])[0]
    assert got.dtype == torch.bfloat16
    assert (got - want).square().mean().sqrt() < 0.02 * want.square().mean().sqrt()


def test_captions_in_chunks_are_the_captions_at_once(folder: Path, encoder: TextEncoder) -> None:
    """Up to rounding: matrix products of other numbers of rows add in another order."""
    texts = [f"handwritten digit {word} moving left" for word in digits.WORDS] + ["digit one"]
    sizes: list[int] = []
    parts = TextEncoder.from_folder(folder, max_length=8)
    parts.model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    length = int(encoder.encode(texts)[1].sum(1).max())
    each = parts.caption_bytes(length)
    for captions, wanted in ((4, [4, 4, 3]), (1, [1] * 11), (11, [11]), (0.5, [1] * 11)):
        parts.budget.limit_bytes = int(captions * each)
        sizes.clear()
        for got, want in zip(parts.encode(texts), encoder.encode(texts), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
        assert sizes == wanted


def small_t5(dtype: torch.dtype, attention: str, **sizes: int) -> Any:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=10, num_layers=2, feed_forward_proj="gated-gelu", dropout_rate=0.0,
        attn_implementation="eager" if attention == "eager" else "sdpa", **sizes,
    )  # fmt: skip
    return T5EncoderModel(config).to(dtype)


def counted(model: Any, attention: str, count: int, length: int) -> int:
    """Bytes that are alive at once beside the weights and the tokens."""
    ids = torch.ones(count, length, dtype=torch.int64, device=model.device)
    mask = (torch.arange(length) < torch.arange(count)[:, None] + 5).long().to(model.device)
    live = LiveBytes([*model.parameters(), ids, mask])
    held = live.now
    math = sdpa_kernel(SDPBackend.MATH) if attention == "math" else nullcontext()
    with torch.no_grad(), math, live:
        model(input_ids=ids, attention_mask=mask)
    return live.peak - held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["sdpa", "math", "eager"])
@pytest.mark.parametrize(("heads", "length"), [(16, 40), (2, 60), (16, 150)])
def test_the_bytes_of_a_caption_bound_its_peak(
    dtype: torch.dtype, attention: str, heads: int, length: int
) -> None:
    model = small_t5(dtype, attention, d_model=64, d_kv=64 // heads, d_ff=160, num_heads=heads)
    bound = 12 * TextEncoder(model, None, length).caption_bytes(length)
    got = counted(model, attention, 12, length)
    assert (0.7 if attention == "math" else 0.3) * bound < got < bound


def test_the_bytes_of_a_caption_of_t5_xxl(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "transformers.masking_utils._ignore_bidirectional_mask_sdpa"  # it looks at numbers
    monkeypatch.setattr(name, lambda *_, **__: False, raising=False)
    with torch.device("meta"):
        model = small_t5(torch.bfloat16, "math", d_model=4096, d_kv=64, d_ff=10240, num_heads=64)
    bound = TextEncoder(model, None, 300).caption_bytes(300)
    assert 0.8 * bound < counted(model, "math", 8, 300) / 8 < bound


@pytest.mark.parametrize("longest", [12, 16])
def test_all_captions_together_are_there_once(longest: int) -> None:
    """Beside those that go through at once."""
    model = small_t5(torch.float32, "sdpa", d_model=64, d_kv=16, d_ff=160, num_heads=4)

    def tokenizer(texts: list[str], **_: Any) -> dict[str, Tensor]:
        mask = (torch.arange(longest) < torch.arange(len(texts))[:, None] % longest + 1).long()
        return {"input_ids": torch.ones_like(mask), "attention_mask": mask}

    encoder = TextEncoder(model, tokenizer, 16)
    encoder.budget.limit_bytes = budget = 2 * encoder.caption_bytes(longest)
    live = LiveBytes(model.parameters())
    held = live.now
    with live:
        y_B1LC, mask_BL = encoder.encode([""] * 200)
    whole = y_B1LC.untyped_storage().nbytes()
    assert y_B1LC.shape == (200, 1, 16, 64)
    assert not y_B1LC[:, 0][mask_BL == 0].any()
    assert whole < live.peak - held < 1.2 * whole + budget


def test_too_little_memory_for_one_caption_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TextEncoder.from_folder(folder, max_length=8)

    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(encoder.model, "forward", fails)
    with pytest.raises(OutOfMemory, match="too many for the text encoder"):
        encoder.encode(["digit one", "digit two"])


def test_the_published_layout_loads(tmp_path: Path) -> None:
    """spiece.model and a pickled checkpoint of a whole T5, as DeepFloyd/t5-v1_1-xxl has them."""
    from sentencepiece import SentencePieceTrainer
    from transformers import T5Config, T5ForConditionalGeneration

    (tmp_path / "corpus").write_text(
        "a red car drives along the coast\nthe camera pans left\n" * 50
    )
    SentencePieceTrainer.train(
        input=str(tmp_path / "corpus"), model_prefix=str(tmp_path / "spiece"), vocab_size=60,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    settings = T5Config(
        vocab_size=160, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4,
        feed_forward_proj="gated-gelu", architectures=["T5ForConditionalGeneration"],
    )  # fmt: skip
    settings.save_pretrained(tmp_path)
    whole = T5ForConditionalGeneration(settings)
    torch.save(whole.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100})
    )
    encoder = TextEncoder.from_folder(tmp_path, max_length=300)
    y, mask = encoder.encode(["a red car"])
    assert y.shape == (1, 1, 300, 16)
    assert encoder.tokenizer("a red car")["input_ids"][int(mask.sum()) - 1] == 1  # ends with </s>
    assert encoder.model.shared.weight.equal(whole.shared.weight)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cut off")
    with pytest.raises(ConfigError, match="cannot be read as a T5 encoder"):
        TextEncoder.from_folder(tmp_path)


def test_a_hub_id_without_the_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ["--text-encoder.type", "t5", "--text-encoder.from-pretrained", "nobody/no-such-t5"]
    config = load("demo", words)
    with pytest.raises(ConfigError, match="the hub failed") as caught:
        build_text_encoder(config, Path(), torch.float32)
    assert "hf download nobody/no-such-t5" in str(caught.value.hint)


def test_unknown_words_become_one_token_and_long_captions_are_cut(encoder: TextEncoder) -> None:
    y, mask = encoder.encode(["purple", "elephants", "one " * 30])
    assert torch.equal(y[0], y[1])
    assert mask[2].sum() == 8


def test_the_same_texts_give_the_same_encoder(folder: Path, tmp_path: Path) -> None:
    again = build_tiny_t5(tmp_path / "again", digits.prompts(), d_model=64)
    assert features(again).equal(features(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]  # nothing half-written


def features(path: Path) -> Tensor:
    return TextEncoder.from_folder(path, 8).encode(["handwritten digit nine moving down"])[0]


def test_building_does_not_disturb_the_callers_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    build_tiny_t5(tmp_path / "t5", ["a b"], d_model=16)
    assert torch.rand(3).equal(want)


def test_a_folder_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        TextEncoder.from_folder(tmp_path, 8)


@pytest.fixture
def t5(tmp_path: Path, folder: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "t5"))


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        TextEncoder.from_folder(folder)
    return f"{caught.value}; {caught.value.hint}"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, Any]]) -> None:
    """The weights under other names."""
    changed = change(load_file(folder / "model.safetensors"))
    if any(isinstance(value, dict) for value in changed.values()):
        (folder / "model.safetensors").unlink()
        torch.save(changed, folder / "pytorch_model.bin")
    else:
        save_file(changed, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: {f"text_encoder.{name}": value for name, value in found.items()}, "missing"),
        (lambda found: {"state_dict": found}, "missing"),
        (lambda found: {n: v for n, v in found.items() if not n.startswith("shared")}, "shared.weight"),
        (lambda found: {n: v for n, v in found.items() if ".block.1." not in n}, "encoder.block.1."),
        (lambda found: {n: v for n, v in found.items() if "final" not in n}, "1 missing (encoder.final"),
        (
            lambda found: {n: v.repeat(2, *[1] * (v.dim() - 1)) if "wo" in n else v for n, v in found.items()},
            "",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fill_the_encoder_are_refused(t5: Path, change, says: str) -> None:
    rewrite(t5, change)
    assert says in refused(t5)


def test_weights_that_are_no_numbers_are_named(t5: Path) -> None:
    def change(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found["encoder.final_layer_norm.weight"][3] = float("nan")
        return found

    rewrite(t5, change)
    assert "not finite (NaN or infinity), in encoder.final_layer_norm.weight" in refused(t5)


def test_tokenizer_without_words_is_refused(t5: Path, tmp_path: Path) -> None:
    (t5 / "tokenizer.json").unlink()
    assert "has neither spiece.model nor tokenizer.json" in refused(t5)
    empty = build_tiny_t5(tmp_path / "empty", [], d_model=64)
    (empty / "tokenizer.json").rename(t5 / "tokenizer.json")
    assert "every word is unknown to the tokenizer" in refused(t5)
    large = build_tiny_t5(tmp_path / "large", [" ".join(f"w{n}" for n in range(200))], d_model=64)
    (large / "tokenizer.json").rename(t5 / "tokenizer.json")
    assert "the tokenizer has word 202" in refused(t5)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "spiece.model", "model.safetensors", "config.json"]
)
def test_git_lfs_pointer_is_named(t5: Path, name: str) -> None:
    (t5 / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 791656\n"
    )
    said = refused(t5)
    assert f"{t5 / name} is a git-lfs pointer of " in said
    assert "git lfs pull" in said


def test_folder_of_the_hubs_cache_names_the_one_below(t5: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--x--t5"
    shutil.copytree(t5, cache / "snapshots" / "abc")
    assert f"the files are below it: {cache / 'snapshots/abc'}" in refused(cache)
    assert "there is no folder" in refused(tmp_path / "nowhere")
