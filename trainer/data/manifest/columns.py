"""Columns of other people's tables: what a file is that lacks ours, and what to do about it."""

from __future__ import annotations

import codecs
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.manifest.manifest import PROBED, ManifestError

_MADE_BY = dict.fromkeys(PROBED, "probe") | {"file_size": "probe --file-size", "check": "check"}
# Names that published data sets have for ours: OpenVid, Panda-70M, MiraData, HD-VILA, VidGen, …
_OTHER_NAMES = {
    "path": (
        *("video", "video_path", "videopath", "path_to_video", "file", "filename", "file_name"),
        *("filepath", "file_path", "clip", "clip_path", "video_file", "image"),
        *("image_path", "media_path"),
    ),
    "text": ("caption", "captions", "prompt", "description", "dense_caption", "name", "label"),
}
_LFS = b"version https://git-lfs.github.com"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FILE = re.compile(r".+\.(mp4|mov|m4v|avi|mkv|webm|ts|gif|jpe?g|png|webp)", re.IGNORECASE)


def check_bytes(source: Path) -> None:
    """Raise ManifestError for a file that is none of ours by its first bytes; OSError."""
    with source.open("rb") as file:
        head = file.read(256)
    if head.startswith(_LFS):
        raise ManifestError(
            f"{source} is a git-lfs pointer, not the table", hint="git lfs pull fetches it"
        )
    if source.suffix == ".csv" and (head.startswith(_UTF_16) or b"\0" in head.partition(b"\n")[0]):
        raise ManifestError(
            f"{source} is not UTF-8 (it looks like UTF-16)",
            hint=f"iconv -f UTF-16 -t UTF-8 {source} > utf8.csv",
        )


def require(source: Path, names: Sequence[str], required: Sequence[str]) -> None:
    """Raise ManifestError for the first missing or doubled column."""
    for name in required:
        if name not in names:
            raise _missing(source, names, name)
    for name in names:
        if list(names).count(name) > 1:
            raise ManifestError(f"{source}: column {name!r} appears twice")


def _missing(source: Path, names: Sequence[str], name: str) -> ManifestError:
    has = f"it has {', '.join(map(repr, names))[:300]}"
    if name in _MADE_BY:
        made = f"make it with python -m trainer.data {_MADE_BY[name]}"
        return ManifestError(f"{source}: no column {name!r}; {made}")
    hint = None
    if name in _OTHER_NAMES:
        hint = _hint(source, names)
    return ManifestError(f"{source}: no column {name!r}; {has}", hint=hint)


def _hint(source: Path, names: Sequence[str]) -> str:
    if source.suffix == ".csv":
        for sign, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if len(names) == 1 and sign in names[0]:
                return f"its cells are separated by {word}: write it with commas"
        if any(_FILE.fullmatch(one) for one in names):
            return "its first line looks like a clip: write the names of the columns above it"
    given = {own: own if own in names else _other(names, own) for own in _OTHER_NAMES}
    columns = ",".join(f"{own}={other or 'COLUMN'}" for own, other in given.items() if own != other)
    return (
        f"python -m trainer.data probe {source} manifest.csv --columns {columns} takes its columns "
        "by their names (path: the file of a clip; text: its caption)"
    )


def _other(names: Sequence[str], own: str) -> str | None:
    """The column that probably is ours."""
    lower = {name.lower().replace(" ", "_"): name for name in names}
    return next((lower[other] for other in _OTHER_NAMES[own] if other in lower), None)


def parse_names(text: str) -> dict[str, str]:
    """`path=video,text=caption` as {video: path, caption: text}. Raises ArgumentTypeError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        own, sign, other = (word.strip() for word in part.partition("="))
        if not (own and sign and other) or other in found or own in found.values():
            raise ArgumentTypeError(f"{text!r} is not OURS=THEIRS,…, as in path=video,text=caption")
        found[other] = own
    return found


def renamed(source: Path, names: Sequence[str], others: Mapping[str, str]) -> list[str]:
    """Names of columns with ours in the place of others. Raises ManifestError."""
    for other in others:
        if other not in names:
            shown = ", ".join(map(repr, names))[:300]
            raise ManifestError(f"{source}: no column {other!r}; it has {shown}")
    return [others.get(name, name) for name in names]
