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
_ENCODINGS = (  # UTF-32's mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_KINDS = (  # by their first bytes
    (b"PAR1", "a parquet file", "name it .parquet"),
    (b"\x1f\x8b", "compressed with gzip", "gunzip it (its name must end in .gz for that)"),
    (b"PK\3\4", "a zip archive (a spreadsheet, perhaps)", "save its table as csv in UTF-8"),
)
# Of published data sets whose table has a column for the file: theirs -> ours.
DATASETS = {"openvid": {"video": "path", "caption": "text"}}
_EXAMPLE = f"path=video,text=caption, nor a data set known by name ({', '.join(DATASETS)})"
_FILE = re.compile(r".+\.(mp4|mov|m4v|avi|mkv|webm|ts|gif|jpe?g|png|webp)", re.IGNORECASE)


def check_bytes(source: Path) -> None:
    """Raise ManifestError for a file that is none of ours by its first bytes; OSError."""
    with source.open("rb") as file:
        head = file.read(256)
    if head.startswith(_LFS):
        raise ManifestError(
            f"{source} is a git-lfs pointer, not the table", hint="git lfs pull fetches it"
        )
    if source.suffix == ".csv":
        _check_text(source, head)


def _check_text(source: Path, head: bytes) -> None:
    for start, what, hint in _KINDS:
        if head.startswith(start):
            raise ManifestError(f"{source} is {what}, not a csv", hint=hint)
    encoding = next((name for mark, name in _ENCODINGS if head.startswith(mark)), "")
    line = head.partition(b"\n")[0]
    halves = line[::2], line[1::2]  # of ASCII letters in UTF-16 one of two bytes is NUL
    if (
        not encoding
        and any(half and not half.strip(b"\0") for half in halves)
        and line.strip(b"\0")
    ):
        encoding = "UTF-16LE" if not halves[1].strip(b"\0") else "UTF-16BE"
    if encoding:
        raise ManifestError(
            f"{source} is not UTF-8 (it looks like {encoding})",
            hint=f"iconv -f {encoding} -t UTF-8 {source} > utf8.csv",
        )
    if head and not head.strip(b"\0"):
        raise ManifestError(
            f"{source} begins with NUL bytes only: it was not written to its end",
            hint="a crash or a full disk leaves such files: make it again",
        )
    if b"\0" in line:
        at = line.index(b"\0")
        raise ManifestError(
            f"{source} is not a table: byte {at + 1} of its first line is NUL",
            hint="it is no text, or damaged: make it again",
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
    if {"videoid", "page_dir", "name"} <= {*names}:
        query = "SELECT page_dir || '/' || videoid || '.mp4' AS path, name AS text"
        copy = f"COPY ({query} FROM '{source}') TO 'clips.csv'"
        return f'WebVid names no files; python -c "import duckdb; duckdb.sql(\\"{copy}\\")" does'
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
    """`path=video,text=caption` as {video: path, caption: text}, or the name of a data set. Raises
    ArgumentTypeError."""
    if known := DATASETS.get(re.sub(r"[-_]?1m$", "", text.strip().lower())):
        return dict(known)
    found: dict[str, str] = {}
    for part in text.split(","):
        own, sign, other = (word.strip() for word in part.partition("="))
        if not (own and sign and other) or other in found or own in found.values():
            raise ArgumentTypeError(f"{text!r} is not OURS=THEIRS,…, as in {_EXAMPLE}")
        found[other] = own
    return found


def renamed(source: Path, names: Sequence[str], others: Mapping[str, str]) -> list[str]:
    """Names of columns with ours in the place of others. Raises ManifestError."""
    for other in others:
        if other not in names:
            shown = ", ".join(map(repr, names))[:300]
            raise ManifestError(f"{source}: no column {other!r}; it has {shown}")
    return [others.get(name, name) for name in names]
