"""Captions to features: a T5 encoder, or a tiny one. transformers takes seconds: imported late."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.errors import ConfigError
from trainer.models import lfs
from trainer.models.attention.calls import without_plans
from trainer.models.memory import MemoryBudget, in_batches
from trainer.runlog.atomic_file import put_in_place

# B batch · L text tokens · C text channels
WORDS = ("spiece.model", "tokenizer.json")  # files of a tokenizer, of which it needs one
_NOT_READ = re.compile(r"decoder\.|lm_head\.")  # of a whole T5
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


class TextEncoder:
    """Tokens padded to one length, last hidden state, and which tokens are real.

    `budget` decides how many captions go through at once: 475 of T5-XXL take up to 44 GB.
    """

    def __init__(
        self, model: Any, tokenizer: Any, max_length: int, budget: MemoryBudget | None = None
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.max_length = tokenizer, max_length
        self.budget = budget or MemoryBudget()

    @classmethod
    def from_folder(
        cls, path: str | Path, max_length: int = 300, dtype: torch.dtype = torch.float32
    ) -> TextEncoder:
        """An encoder with its tokenizer. Raises ConfigError."""
        folder = Path(path)
        check_folder(folder)
        from transformers import AutoTokenizer, T5EncoderModel

        try:
            with _quietly():
                # Features are cut behind the number of their tokens: padding comes last.
                tokenizer = AutoTokenizer.from_pretrained(
                    folder, local_files_only=True, padding_side="right"
                )
                model, info = T5EncoderModel.from_pretrained(
                    folder, local_files_only=True, dtype=dtype, output_loading_info=True
                )
        except Exception as error:  # noqa: BLE001 - four libraries read this, each fails its way
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            hint = "its files may be cut off: compare their sizes with the source's"
            text = f"{folder} cannot be read as a T5 encoder: {first}"
            raise ConfigError(text, hint=hint) from None
        _refuse_random_weights(folder, info)
        _refuse_no_numbers(folder, model)
        _refuse_other_tokenizer(folder, tokenizer, model.config.vocab_size)
        return cls(model, tokenizer, max_length)

    @property
    def channels(self) -> int:
        return int(self.model.config.d_model)

    def to(self, device: torch.device | str) -> TextEncoder:
        self.model.to(device)
        return self

    def caption_bytes(self, tokens: int) -> int:
        """Peak of one caption, as an upper bound whichever kernel attends: in attention or in the
        feed-forward layer. Where torch has no kernel for the bias of a caption's pairs of tokens,
        or transformers does not ask it, scores and weights of the pairs are there in fp32: 94 MB
        of 300 tokens of T5-XXL in bf16, 42 MB with a kernel (a test counts them)."""
        config, item = self.model.config, self.model.dtype.itemsize
        inner = config.num_heads * config.d_kv
        # Two copies of the bias; queries, keys and values in fp32, two of them scaled again.
        pairs = config.num_heads * tokens**2 * (2 * item + 2 * 4)
        # The embeddings, what is added to, and the same after its norm.
        always = tokens * 3 * config.d_model * item
        attention = pairs + tokens * inner * (4 * item + 5 * 4)
        return always + max(attention, tokens * 5 * config.d_ff * item)

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features [B, 1, L, C] in the encoder's dtype, 0 of padding, and int64 mask
        [B, L] on the host, 1 = real token. L is `max_length`: longer captions are cut. Raises
        OutOfMemory when one caption is too much."""
        tokens = self.tokenizer(
            list(texts),
            max_length=self.max_length,
            padding="longest",
            truncation=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        mask_BL = tokens["attention_mask"]
        inputs_B2L = torch.stack([tokens["input_ids"], mask_BL], 1).to(self.model.device)

        rest = self.max_length - mask_BL.shape[1]

        def network(part_B2L: Tensor) -> Tensor:
            ids, mask = part_B2L.unbind(1)
            with without_plans(part_B2L.device):
                y_BLC = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            y_BLC.mul_(mask[:, :, None])
            # Here and of a part only: of all, which may be 475, it would be there twice.
            return F.pad(y_BLC, (0, 0, 0, rest)) if rest else y_BLC

        each, hint = self.caption_bytes(mask_BL.shape[1]), "a smaller text_encoder.model_max_length"
        y_BLC = in_batches(network, inputs_B2L, each, self.budget, "the text encoder", hint)
        return y_BLC[:, None], F.pad(mask_BL, (0, rest))


def check_folder(folder: Path) -> None:
    """Whether a folder has the files of a T5 encoder, none of which is read. Raises ConfigError."""
    hint = "text_encoder.from_pretrained is a folder with a T5 encoder and tokenizer"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint=hint)
    versions = sorted((folder / "snapshots").glob("*/config.json"))
    if versions and not (folder / "config.json").is_file():
        hint = f"the files are below it: {versions[-1].parent}"
        raise ConfigError(f"{folder} is a folder of the hub's cache, not of one model", hint=hint)
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} has no {name}", hint=hint)
    for path in sorted(folder.iterdir()):
        if path.name in WORDS:
            what = "the tokenizer's words"
        else:
            what = "the weights" if path.suffix in (".safetensors", ".bin") else "the file itself"
        if why := lfs.pointer(path, what):
            raise ConfigError(why, hint=lfs.HINT)
    if not any((folder / name).is_file() for name in WORDS):
        # transformers 5 makes a tokenizer of special tokens then, to which each word is unknown.
        text = f"{folder} has neither {' nor '.join(WORDS)}, so every word would be unknown"
        raise ConfigError(text, hint="download these files of the same model, too")


def _refuse_random_weights(folder: Path, info: Mapping[str, Any]) -> None:
    """transformers fills with random numbers what a file does not have, others in each process."""
    missing = sorted(map(str, info["missing_keys"]))
    mismatched = sorted(str(one[0]) for one in info["mismatched_keys"])
    parts = [(missing, "missing"), (mismatched, "of another shape")]
    found = ", ".join(f"{len(names)} {what} ({names[0]})" for names, what in parts if names)
    if not found:
        return
    unknown = sorted(
        name for name in map(str, info["unexpected_keys"]) if not _NOT_READ.match(name)
    )
    more = f", {len(unknown)} unknown ({unknown[0]})" if unknown else ""
    hint = "its weights need the names of transformers' T5EncoderModel: shared.weight, encoder.…"
    raise ConfigError(f"{folder} is not a whole T5 encoder; tensors: {found}{more}", hint=hint)


def _refuse_no_numbers(folder: Path, model: Any) -> None:
    """The first loss would not be finite, which says nothing of the encoder. 1 s of CPU for a
    billion."""
    bad = [name for name, one in model.named_parameters() if not bool(one.isfinite().all())]
    if bad:
        more = f" and {len(bad) - 1:,} more tensors" if len(bad) > 1 else ""
        text = f"{folder} holds values that are not finite (NaN or infinity), in {bad[0]}{more}"
        raise ConfigError(text, hint="get its files again: they are damaged")


def _refuse_other_tokenizer(folder: Path, tokenizer: Any, vocabulary: int) -> None:
    """One that does not know words, or has more of them than the encoder."""
    hint = "take tokenizer and weights of the same model"
    special = set(tokenizer.all_special_ids)
    known = {word: place for word, place in tokenizer.get_vocab().items() if place not in special}
    most = max(known.values(), default=-1)
    if most >= vocabulary:
        text = f"{folder}: the tokenizer has word {most}, the encoder has {vocabulary} words"
        raise ConfigError(text, hint=hint)
    some = [
        tokenizer.decode([place]) for place in sorted(known.values())[:: max(1, len(known) // 20)]
    ]
    for text in ("a man walks beside a red car", " ".join(some)):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if any(place not in special for place in ids):
            return
    raise ConfigError(f"{folder}: every word is unknown to the tokenizer", hint=hint)


def build_tiny_t5(
    folder: str | Path,
    texts: Iterable[str],
    d_model: int = 64,
    num_layers: int = 2,
    initializer_factor: float = 0.05,
    feature_scale: float = 2.0,
    seed: int = 0,
) -> Path:
    """Write a T5 encoder whose tokens are the words of `texts`, whole or not at all. Untrained, it
    must not blur what it reads: embeddings of words are orthogonal (as far as d_model allows) and
    the layers start small (`initializer_factor`). `feature_scale` is the RMS of what comes out;
    with 2 to 4 a small STDiT finds the words soonest (1 is slower, 10 never did). The same
    arguments give the same files."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    heads = max(1, d_model // 16)
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text.lower())})
    ids = {word: place for place, word in enumerate([PAD, END, UNKNOWN, *words])}
    core = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(END, ids[END])]
    core.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=special)
    names = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    config = T5Config(
        vocab_size=len(ids),
        d_model=d_model,
        d_kv=d_model // heads,
        d_ff=4 * d_model,
        num_layers=num_layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        pad_token_id=ids[PAD],
        eos_token_id=ids[END],
        initializer_factor=initializer_factor,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5EncoderModel(config)
        rows = torch.nn.init.orthogonal_(torch.empty(len(ids), d_model))
    with torch.no_grad():
        model.shared.weight.copy_(rows * d_model**0.5)
        # The last RMS norm makes all features one size; initializer_factor made its weight small.
        model.encoder.final_layer_norm.weight.fill_(feature_scale)
    return _save(Path(folder), model, tokenizer)


def _save(folder: Path, model: Any, tokenizer: Any) -> Path:
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        with _quietly():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
        put_in_place(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


@contextmanager
def _quietly() -> Iterator[None]:
    """transformers draws bars for a file of 500 kB, and reports a T5's decoder as unexpected."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
