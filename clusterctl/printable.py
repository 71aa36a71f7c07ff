"""Text of others made safe to print: names, output and messages of nodes, of processes, of files.

A terminal interprets what it is sent: an escape sequence in a process name sets the window title,
fills the clipboard or hides a line (CWE-150). What cannot be printed is shown as Python writes it.
"""

from __future__ import annotations

import re

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
