"""What a process of the trainer prints: logging, set up once. No output failure ends a run.

Loggers below `trainer` write to stderr, `RUN` (what a run reports of its steps) to stdout. Data
that a user pipes, tables and JSON, is no log: `print`.

Names in files and texts of others are made safe to print (CWE-150): a terminal interprets what it
is sent, an escape sequence sets the window title, fills the clipboard or hides a line. What cannot
be printed is shown as Python writes it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any, TextIO

from trainer.errors import TrainerError

# Colours carry no text and harm only a user who copies them: they are left out, not shown.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")

# C0 and C1 controls with DEL; marks that turn the direction of text around (CVE-2021-42574) or
# cannot be seen; line and paragraph separators; lone surrogates, which no encoding can write.
_UNSAFE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_ONE_LINE = re.compile(f"[\\t\\n{_UNSAFE}]")
_LINES = re.compile(f"[{_UNSAFE}]")

LOG = logging.getLogger("trainer")
RUN = logging.getLogger("trainer.run")


class Printable:
    """A stream that writes nothing which a terminal interprets; everything else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self.raw: TextIO = getattr(stream, "raw", stream)  # for what this program itself draws

    def write(self, text: str) -> int:
        return self.raw.write(printable(text, lines=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def printable(text: str, *, lines: bool = False) -> str:
    r"""`text` without what a terminal interprets: `\x1b`, `\u202e` stand for the characters.

    Newlines and tabs are kept with `lines`, and a carriage return before a newline falls away;
    without `lines` they are shown as `\n` and `\t`, so that the result is one line. Colours are
    left out.
    """
    if text.isascii() and text.isprintable():
        return text
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if lines:
        return _LINES.sub(_shown, text.replace("\r\n", "\n"))
    return _ONE_LINE.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    named = {9: r"\t", 10: r"\n", 13: r"\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class _Handler(logging.Handler):
    """One line a record; the stream is that of the moment. Errors name their rank themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        is_error, text = record.levelno >= logging.ERROR, printable(record.getMessage(), lines=True)
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        if not is_error and (rank := os.environ.get("RANK", "0")) != "0":
            text = f"rank {rank}: {text}"
        is_report = record.name == RUN.name and record.levelno < logging.WARNING
        write(f"{text}\n", sys.stdout if is_report else sys.stderr)


_HANDLER = _Handler()


def configure(level: int = logging.INFO) -> None:
    """Set up the trainer's loggers; a second call changes the level only."""
    LOG.setLevel(level)
    LOG.propagate = False
    LOG.addHandler(_HANDLER)


def report_error(error: TrainerError) -> int:
    """Log what a command prints of it; returns its exit code."""
    LOG.error(error.full_text())
    return error.exit_code


def write(text: str, stream: TextIO) -> None:
    """Write and flush. What the encoding lacks is escaped (a file name that is not UTF-8).

    What cannot be written (a full disk, a closed pipe) is lost here; telemetry.jsonl has it.
    """
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError as error:
        write(text.encode(error.encoding, "backslashreplace").decode(error.encoding), stream)
    except (OSError, ValueError):  # ValueError: it is closed
        pass


def all_is_out() -> bool:
    """Whether nothing is left to print; if something is, Python itself would exit with 120."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True
