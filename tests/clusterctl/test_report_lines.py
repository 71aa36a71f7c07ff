"""Lines of reports: texts behind labels, wrapped or cut."""

from __future__ import annotations

from clusterctl.report_lines import WIDTH, cut, labelled, wrapped


def test_text_stands_behind_its_label_and_no_line_is_wider_than_a_report() -> None:
    lines = list(labelled("cause", "out of memory " * 12 + "on ml-64-node-001", "bad"))
    assert [style for _, style in lines] == ["bad"] * 3
    assert [text[:10] for text, _ in lines] == ["cause     ", " " * 10, " " * 10]
    assert max(len(text) for text, _ in lines) <= WIDTH
    assert list(labelled("log", "a\x07")) == [("log       a\\x07", None)]


def test_names_are_not_broken_at_their_hyphens() -> None:
    assert wrapped("see ml-64-node-001", 16) == ["see", "ml-64-node-001"]
    assert wrapped("a b", 2, indent="  ") == ["a", "  b"]
    assert wrapped("", start="label ") == ["label "]


def test_width_of_0_is_no_limit() -> None:
    assert cut("a" * 200, 0) == "a" * 200
    assert wrapped("a " * 200, 0) == ["a " * 200]
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"
