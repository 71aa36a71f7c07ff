"""A run says where its captions are not what sampling makes of prompts."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.data.rows import manifest_of
from trainer.build_run import _unclean
from trainer.checkpoint.files import RUNNING
from trainer.config.load import Config
from trainer.infer.prepare import _raw_captions


@pytest.mark.parametrize(
    ("kind", "texts", "said"),
    [
        ("t5", ["a cat", "A <b>Cat</b>"], "1 of 2 captions looked at are not clean"),
        ("t5", ["a cat", "a dog"], ""),
        (
            "tiny_t5",
            ["[a cat]", "[a dog]", "a bird"],
            "2 of 3 captions looked at stand in brackets",
        ),
        ("tiny_t5", ["A <b>Cat</b>", "a dog"], ""),
    ],
)
def test_captions_that_sampling_would_clean_are_said(
    kind: str, texts: list[str], said: str
) -> None:
    config = Config()
    config = replace(config, text_encoder=replace(config.text_encoder, type=kind))
    note = _unclean(config, manifest_of(*([size] * len(texts) for size in (9, 4, 4)), texts))
    assert said in note
    assert bool(note) == bool(said)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('{"captions": "12 of 50 captions looked at are not clean"}', "12 of 50 captions"),
        ('{"captions": ""}', ""),
        ('{"captions": 7}', ""),
        ("{}", ""),  # of an earlier version
        ("damaged", ""),
    ],
)
def test_sampling_says_that_a_run_was_taught_in_other_words(
    tmp_path: Path, document: str, said: str
) -> None:
    (tmp_path / RUNNING).write_text(document)
    note = _raw_captions(tmp_path)
    assert said in note
    assert bool(note) == bool(said)
    assert _raw_captions("owner/name") == ""
