"""Columns of other people's tables: what a file is that lacks ours, and what to do about it."""

from __future__ import annotations

import codecs
import re
import shlex
import stat
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.manifest.manifest import PROBED, SUFFIXES, ManifestError

_MADE_BY = dict.fromkeys(PROBED, "probe") | {"file_size": "probe --file-size", "check": "check"}
# Names that published data sets have for ours.
_OTHER_NAMES = {
    "path": (
        *("video", "video_path", "videopath", "path_to_video", "file", "filename", "file_name"),
        *("filepath", "file_path", "clip", "clip_path", "video_file", "image"),
        *("image_path", "media_path", "video_file_path", "relative_path", "local_path"),
    ),
    "text": (
        *("caption", "captions", "prompt", "description", "dense_caption", "detailed_caption"),
        *("long_caption", "video_caption", "recaption", "cap", "summary", "short_caption"),
        *("sentence", "title", "name", "label"),
    ),
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
DATASETS = {
    "openvid": {"video": "path", "caption": "text"},
    "miradata": {"file_path": "path", "dense_caption": "text"},
    "open-sora-plan": {"cap": "text"},  # its column of files is called path
}
# Tables that name no file where the file's name follows from other columns: how to recognise them,
# whose they are, and the query that makes a table of path and text.
_NAMELESS = (
    (
        {"videoid", "page_dir", "name"},
        "WebVid names no files",
        "SELECT page_dir || '/' || videoid || '.mp4' AS path, name AS text FROM {}",
    ),
    (
        {"vid", "caption"},
        "VidGen names no files",
        "SELECT vid || '.mp4' AS path, caption AS text FROM {}",
    ),
    (
        {"key", "status", "original_width"},
        "img2dataset names no files (--output_format files writes FOLDER/KEY.jpg)",
        (
            "SELECT left(key, 5) || '/' || key || '.jpg' AS path, caption AS text "
            "FROM {} WHERE status = 'success'"
        ),
    ),
    (
        {"key", "status", "caption"},
        "video2dataset names no files (--output_format files writes FOLDER/KEY.mp4)",
        (
            "SELECT left(key, 5) || '/' || key || '.mp4' AS path, caption AS text "
            "FROM {} WHERE status = 'success'"
        ),
    ),
)
_MADE = {"webvid": "page_dir/videoid.mp4", "vidgen": "vid.mp4"}  # the query makes them
# Columns of tables whose rows are videos on the web, not files that somebody has.
_ON_THE_WEB = (
    *("url", "video_url", "videourl", "contenturl", "content_loc", "videolink", "youtubeid"),
    *("youtube_id", "ytid", "videoid", "video_id"),
)
_PIECES = (
    *("timestamp", "timestamps", "start_timestamp", "start_time", "time_start", "start", "span"),
    *("clip", "clips", "start_sec", "start_frame"),
)
_OF_THE_WEB = ("panda", "koala", "internvid", "hd-vila", "hd-vg", "vript", "finevideo", "howto")
_FETCH = "fetch them and cut them as it says (video2dataset does both, its tables can be read)"
_EXAMPLE = f"path=video,text=caption, nor a data set known by name ({', '.join(DATASETS)})"
_OTHER_FORMATS = {  # DuckDB reads them; csv keeps lists as texts
    ".json": "FROM read_json({})",
    ".jsonl": "FROM read_json({})",
    ".ndjson": "FROM read_json({})",
    ".tsv": "FROM read_csv({}, delim='\t')",
}
_PACKED = {".gz": "gunzip", ".zip": "unzip", ".zst": "unzstd", ".xz": "unxz", ".tar": "tar xf"}
_FILE = re.compile(r".+\.(mp4|mov|m4v|avi|mkv|webm|ts|gif|jpe?g|png|webp)", re.IGNORECASE)


def check_bytes(source: Path) -> None:
    """Raise ManifestError for a file that is none of ours by its first bytes; OSError."""
    if not stat.S_ISREG(mode := source.stat().st_mode) and not stat.S_ISDIR(mode):
        raise ManifestError(f"{source} is a pipe or a device, and a manifest is a plain file")
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
    lower = {name.lower().replace(" ", "_"): name for name in names}
    for marks, whose, query in _NAMELESS:
        if marks <= lower.keys():
            target = source.with_name(f"{source.stem}.clips.csv")  # paths start beside it
            return f"{whose}; {_command(query, source, target)} makes a table that does"
    given = {own: own if own in names else _other(names, own) for own in _OTHER_NAMES}
    columns = ",".join(f"{own}={other or 'COLUMN'}" for own, other in given.items() if own != other)
    arguments = shlex.join([str(source), "manifest.csv", "--columns", columns])
    text = (
        f"python -m trainer.data probe {arguments} takes its columns "
        "by their names (path: the file of a clip; text: its caption)"
    )
    if given["path"] is None and (where := [lower[one] for one in _ON_THE_WEB if one in lower]):
        pieces = [lower[one] for one in _PIECES if one in lower]
        what = f"{'pieces of ' if pieces else ''}videos on the web"
        named = ", ".join(map(repr, [*where, *pieces]))
        return f"its rows are {what} ({named}), not files: {_FETCH}; then {text}"
    return text


def _command(query: str, source: Path, target: Path) -> str:
    """A line for a shell that writes what DuckDB finds."""
    from_, to = ["'" + str(path).replace("'", "''") + "'" for path in (source, target)]
    if source.suffix == ".csv":
        from_ = f"read_csv({from_}, all_varchar=true)"  # a key 00012 is no number
    sql = f"COPY ({query.format(from_)}) TO {to}"
    program = f"import duckdb; duckdb.sql({_in_quotes(sql, chr(92) + chr(34))})"
    return f"python -c {_in_quotes(program, chr(92) + chr(34) + '$`')}"


def _in_quotes(text: str, special: str) -> str:
    """In double quotes, of Python or of a shell."""
    return '"' + "".join(f"\\{one}" if one in special else one for one in text) + '"'


def hint_of_name(source: Path) -> str | None:
    """What makes a manifest of a file of another kind; None if none is known."""
    kind = source.suffix.lower()
    if kind in SUFFIXES and kind != source.suffix:
        return f"name it {kind}"
    if source.suffix in _PACKED:
        return f"{_PACKED[source.suffix]} {shlex.quote(str(source))}"
    if kind in _OTHER_FORMATS:
        query = _OTHER_FORMATS[kind]
        return f"{_command(query, source, source.with_suffix('.csv'))} makes a csv of it"
    return None


def _other(names: Sequence[str], own: str) -> str | None:
    """The column that probably is ours."""
    lower = {name.lower().replace(" ", "_"): name for name in names}
    return next((lower[other] for other in _OTHER_NAMES[own] if other in lower), None)


def parse_names(text: str) -> dict[str, str]:
    """`path=video,text=caption` as {video: path, caption: text}, or the name of a data set. Raises
    ArgumentTypeError."""
    name = re.sub(r"[-_]?[\d.]+[kmb]$", "", text.strip().lower().replace("_", "-"))
    if known := DATASETS.get(name):
        return dict(known)
    if any(name.startswith(one) for one in _OF_THE_WEB):
        raise ArgumentTypeError(f"{text}: its rows are videos on the web, not files: {_FETCH}")
    if name in _MADE:
        raise ArgumentTypeError(
            f"{text} names no files ({_MADE[name]}): without --columns, the error has the command "
            "that makes a table which does"
        )
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
