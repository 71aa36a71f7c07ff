"""docs/reference/configs.md tells every key as it is in the code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trainer.allowed_values import allowed, require_allowed
from trainer.config import docs as configdoc
from trainer.config.build import coerce, field_types
from trainer.config.load import Config

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "configs.md"


def test_the_table_of_keys_is_not_behind_the_code() -> None:
    text = DOCUMENT.read_text()
    message = "run python -m trainer.config.docs --write docs/reference/configs.md"
    assert text == configdoc.updated(text), message


def test_every_key_says_what_it_is_for() -> None:
    own = [
        section for section in configdoc.SECTIONS if section[1].__module__ == "trainer.config.keys"
    ]
    found = [row for prefix, cls, _ in own for row in configdoc.rows(prefix, cls)]
    assert [key for key, _, _, comment in found if not comment] == []


def test_rows_have_type_and_default() -> None:
    found = {key: (kind, default) for key, kind, default, _ in configdoc.rows("", Config)}
    assert found["warmup_steps"] == ("int | None, at least 0", "None")
    assert found["bucket_config"] == ("dict[str, Any]", "{}")
    assert "notes" not in found
    assert "dataset" not in found


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        configdoc.updated("# nothing")


def test_every_default_is_a_value_that_its_key_may_have() -> None:
    ruled = 0
    for prefix, cls, _ in configdoc.SECTIONS:
        defaults = {
            field.name: field.default
            for field in dataclasses.fields(cls)
            if field.default is not dataclasses.MISSING
        }
        require_allowed(cls, defaults, lambda name, prefix=prefix: prefix + name)
        types = field_types(cls)
        for name in defaults.keys() & types.keys():
            coerce(defaults[name], types[name], (name,), prefix + name)
        ruled += sum(allowed(field) is not None for field in dataclasses.fields(cls))
    assert ruled > 60
