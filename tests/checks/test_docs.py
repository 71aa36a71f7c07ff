"""docs/reference/checks.md holds what the registry says."""

from __future__ import annotations

from pathlib import Path

from checks.docs_table import SUBJECTS, render
from checks.runner import all_checks

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"


def test_docs_hold_every_check() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("<!-- table -->\n")[2]
    assert text == render(), "run: python -m checks.docs_table, and put it behind the mark"


def test_every_check_says_what_how_and_what_to_do() -> None:
    for id, one in all_checks().items():
        assert id.split(".")[0] in SUBJECTS
        for words in (one.summary, one.how, one.bad, one.fix):
            assert words, id
        assert any(word in one.bad for word in ("WARN", "FAIL", "UNKNOWN")), id
