"""Captions cleaned as Open-Sora 1.2's inference cleans prompts."""

from __future__ import annotations

import random
import re
import sys
import time

import pytest

from trainer import captions
from trainer.captions import clean_caption
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  A Man RUNNING ", "a man running"),
        ("see https://example.com/a/b?c now", "see ?c now"),  # as upstream's pattern has it
        ("by @someone at www.site.org today", "by at today"),
        ("<b>bold</b> &amp; <i>thin</i>", "bold thin"),
        ("a <person> waves", "a person waves"),
        ("a 中文 sign", "a sign"),
        ("“quoted” and ‘single’", "quoted\" and 'single"),
        ("holiday_video.mp4 of a beach", "of a beach"),
        ("cafÃ© at night", "cafã at night"),  # lower case comes first and spoils the repair
        ("ﬁne weather", "fine weather"),
        ("jc6640 and jc6640vc", "and"),
        ("free shipping worldwide", "worldwide"),
        ("poster 20x30 cm", "poster cm"),
        ("", ""),
    ],
)
def test_what_is_left_of_a_caption(text: str, cleaned: str) -> None:
    assert clean_caption(text) == cleaned


def test_cleaning_a_clean_caption_changes_nothing() -> None:
    text = "a red car drives along the coast, the camera pans left. motion score: 5."
    assert clean_caption(text) == text.rstrip(".") + "."
    assert clean_caption(clean_caption(text)) == clean_caption(text)


@pytest.mark.parametrize("text", ["\ud83d alone", "<![x", "<", "&", "&#xffffffff;", "<!--", "\x00", "a" * 5000])  # fmt: skip
def test_odd_texts_are_cleaned_without_failing(text: str) -> None:
    assert isinstance(clean_caption(text), str)


@pytest.mark.parametrize("name", ["bs4", "ftfy"])
def test_a_missing_library_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"{name} is not installed"):
        clean_caption("x")


SITE = r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"  # upstream's, put short
PIECES = ("a", "b", ".", "-", "com", ".com", ".it", "ru", "http", "https:", "http://", ":", "/", "www",
          "www:", "@", "_", "é", "%", "1", " ", "\n", "png", ".jpg", ".mp4")  # fmt: skip


@pytest.mark.long
def test_links_and_file_names_are_those_of_upstreams_expressions() -> None:
    draw = random.Random(0)
    links = {
        captions._HTTP: re.compile(rf"\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{SITE})"),
        captions._WWW: re.compile(rf"\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{SITE})"),
    }
    names = re.compile(rf"\S+\.{captions._FILE_TYPE}")
    for _ in range(5000):
        text = "".join(draw.choices(PIECES, k=draw.randrange(1, 25)))
        for scheme, whole in links.items():
            assert captions.without_links(text, scheme) == whole.sub("", text), text
        assert captions.without_file_names(text) == names.sub("", text), text


@pytest.mark.parametrize(
    "piece",
    ["a.", "a-", "1.", "a.b", "www.", ". ", "é", "_", "a.com", ".png", "://", "a/", "&", "'\""],
)
def test_a_long_caption_takes_time_by_its_length(piece: str) -> None:
    """40,000 characters of `a.` took 30 CPU seconds."""
    text = piece * (40_000 // len(piece))
    began = time.process_time()
    clean_caption(text)
    assert time.process_time() - began < 3
