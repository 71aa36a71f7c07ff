"""What a terminal would obey never reaches it."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trainer.runlog.output import printable


def test_escape_sequences_are_shown_not_obeyed() -> None:
    assert printable("\x1b]0;owned\x07") == r"\x1b]0;owned\x07"  # the window's title
    assert (
        printable("\x1b]52;c;cm0gLXJm\x1b\\") == r"\x1b]52;c;cm0gLXJm\x1b" + "\\"
    )  # the clipboard
    assert printable("\x9b2J") == r"\x9b2J"  # CSI as one C1 character


def test_colours_are_left_out() -> None:
    assert printable("\x1b[01;31merror\x1b[0m: x") == "error: x"


def test_one_line_stays_one_line_unless_lines_are_wanted() -> None:
    text = "a\tb\r\nc\rd\u2028e"
    assert printable(text) == r"a\tb\r\nc\rd\u2028e"
    assert printable(text, lines=True) == "a\tb\nc" + r"\rd\u2028e"


def test_text_that_turns_its_direction_or_cannot_be_seen_is_shown() -> None:
    assert printable("rank\u202e3") == r"rank\u202e3"
    assert printable("a\u200bb\ufeff") == r"a\u200bb\ufeff"


def test_names_of_all_languages_stay() -> None:
    for text in ("ünïcødé", "训练.py", "обучение", "学習 3", "🚀", "a b-c_d.e/f"):
        assert printable(text) == text


@given(st.text(), st.booleans())
def test_nothing_that_is_left_is_a_control(text: str, lines: bool) -> None:
    shown = printable(text, lines=lines)
    kinds = {unicodedata.category(character) for character in shown} - ({"Cc"} if lines else set())
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    assert not lines or not set(shown) & {chr(code) for code in range(32)} - {"\n", "\t"}
    shown.encode()  # a lone surrogate would fail here
    assert printable(shown, lines=lines) == shown or "\x1b[" in text
