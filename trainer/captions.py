"""Clean captions as Open-Sora 1.2 does before sampling, for prompts and training data.

Upstream trains on raw captions and samples with cleaned ones; cleaning the manifest's once removes
that mismatch. The rules come from web alt texts (shop words, file names, article numbers), run in
this order and see what the ones before left; golden pairs compare them with upstream's.
"""

from __future__ import annotations

import html
import importlib
import re
import urllib.parse
import warnings
from collections.abc import Iterable
from re import Pattern
from typing import Any

from trainer.errors import ConfigError

# Unicode's category Pd
_DASHES = (
    r"-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    r"\ufe31\ufe32\ufe58\ufe63\uff0d"
)
_MARKS = r"#\u00ae\u2022\u00a9\u2122&@\u00b7\u00ba\u00bd\u00be\u00bf\u00a1\u00a7~()\[\]{}|\\/*"
_FILE_TYPE = r"(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_Rule = tuple[Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern), with_) for pattern, with_ in pairs)


_SIGNS = _rules(
    (r"@\w+\b", ""),  # nicknames
    (r"[\u31c0-\u9fff]", ""),  # CJK strokes to unified ideographs; kana and hangul stay
    (rf"[{_DASHES}]+", "-"),
    (r"[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    (r"[\u2018\u2019]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),  # article numbers at the end
    (r"\\n", " "),  # a line break written out
    (r"#(?:\d{1,3}|\d{5,})\b", ""),
    (r"\b\d{6,}\b", ""),
)

_MORE_SIGNS = _rules(
    (r"[\"']{2,}", '"'), (r"\.{2,}", " "), (rf"[{_MARKS}]+", " "), (r"\s+\.\s+", " ")
)

_WORDS = _rules(
    # article codes: jc6640, jc6640vc, 6640vc231
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    # shops
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{_FILE_TYPE}(?:\simages?)?", ""),  # so "mp4s" leaves its s, as upstream
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[x\u0445\u00d7]\d+\.?\d*\b", ""),  # sizes: 20x30, Cyrillic and real sign too
    # spacing
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    # what is removed at the ends
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)

# A link is a scheme or a site; in one regular expression the time is quadratic (`a.a.a.…`).
_HOST = re.compile(r"[a-z0-9.\-]+")
_SITE = re.compile(r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)")
_HTTP = re.compile(r"\bhttps?:(?:/{1,3}|[a-z0-9%])")
_WWW = re.compile(r"\bwww:(?:/{1,3}|[a-z0-9%])")
_BOUNDARY = re.compile(r"\b")
_ENDING = re.compile(rf"\.{_FILE_TYPE}")

_JOINT = re.compile(r"[-_]")
_JOINTS_OF_A_NAME = 4  # from here on a text reads as a file name: this-is-my-cute-cat


def clean_caption(text: str) -> str:
    """What Open-Sora 1.2's inference makes of a prompt; may be empty. Raises ConfigError."""
    # Twice, as upstream: several rules undo what others uncover (an escape inside an escape).
    return _clean_once(_clean_once(text))


def _clean_once(text: str) -> str:
    text = urllib.parse.unquote_plus(text).strip().lower()
    text = text.replace("<person>", "person")  # it only resembles a tag
    for scheme in (_HTTP, _WWW):
        text = without_links(text, scheme)
    text = without_file_names(_apply(_SIGNS, _text_of_markup(text)))
    text = _apply(_MORE_SIGNS, text)
    if len(_JOINT.findall(text)) >= _JOINTS_OF_A_NAME:
        text = _JOINT.sub(" ", text)
    text = html.unescape(html.unescape(_library("ftfy").fix_text(text))).strip()
    return _apply(_WORDS, text).strip()


def without_links(text: str, scheme: Pattern[str]) -> str:
    """Without `\\b(?:{scheme}|{_SITE})`, in linear time: of a run of host signs only the first
    word boundary needs a try; a site that begins later has the same end."""
    kept, done, at = [], 0, 0
    while run := _HOST.search(text, at):
        at = run.end()
        first = _BOUNDARY.search(text, run.start(), run.end())
        if first is None or first.start() >= run.end():
            continue
        found = scheme.match(text, first.start()) or _SITE.match(text, first.start())
        if found is None:  # a scheme is before a colon, at the end of a run
            found = scheme.search(text, max(first.start(), run.end() - len("https")), run.end() + 4)
            if found is not None and found.start() >= run.end():
                found = None
        if found is not None:
            kept.append(text[done : found.start()])
            done = at = found.end()
    return "".join(kept) + text[done:]


def without_file_names(text: str) -> str:
    """Without `\\S+\\.{_FILE_TYPE}`: of each word all up to its last such ending. Linear, too."""

    def rest(word: re.Match[str]) -> str:
        ends = [found.end() for found in _ENDING.finditer(word[0]) if found.start()]
        return word[0][ends[-1] :] if ends else word[0]

    return re.sub(r"\S+", rest, text) if _ENDING.search(text) else text


def _apply(rules: Iterable[_Rule], text: str) -> str:
    for pattern, with_ in rules:
        text = pattern.sub(with_, text)
    return text


def _text_of_markup(text: str) -> str:
    # bs4, not the standard library alone: it decides which text a stray "<" or "&" leaves.
    bs4 = _library("bs4")
    # Half characters (a \ud83d alone) make bs4 fail, and upstream with it.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs4.MarkupResemblesLocatorWarning)
        try:
            return str(bs4.BeautifulSoup(text, features="html.parser").text)
        except bs4.ParserRejectedMarkup:  # "<![x": no markup then (upstream fails)
            return text


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        text = f"captions cannot be cleaned: {error.name} is not installed"
        raise ConfigError(text, hint="pip install ftfy beautifulsoup4") from None
