"""docs/reference holds every check, alert and configuration key as it is in the code."""

from __future__ import annotations

import pytest

from checks.runner import all_checks
from tests import reference_tables as tables


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_not_behind_the_code(name: str) -> None:
    text = (tables.FOLDER / name).read_text(encoding="utf-8")
    assert text == tables.updated(name, text), "run: python -m tests.reference_tables"


def test_a_document_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- table -->"):
        tables.updated("checks.md", "# nothing")


def test_every_check_says_what_how_and_what_to_do() -> None:
    for id, one in all_checks().items():
        assert id.split(".")[0] in tables.CHECK_SUBJECTS
        for words in (one.summary, one.how, one.bad, one.fix):
            assert words, id
        assert any(word in one.bad for word in ("WARN", "FAIL", "UNKNOWN")), id


def test_every_key_of_a_configuration_says_what_it_is_for() -> None:
    own = [one for one in tables.CONFIG_SECTIONS if one[1].__module__ == "trainer.config.keys"]
    found = [row for prefix, cls, _ in own for row in tables.config_rows(prefix, cls)]
    assert [key for key, _, _, comment in found if not comment] == []


def test_rows_of_keys_have_type_and_default() -> None:
    rows = tables.config_rows("", tables.keys.Config)
    found = {key: (kind, default) for key, kind, default, _ in rows}
    assert found["warmup_steps"] == ("int | None, at least 0", "None")
    assert found["bucket_config"] == ("dict[str, Any]", "{}")
    assert "notes" not in found
    assert "dataset" not in found
