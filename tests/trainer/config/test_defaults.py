"""Every default is a value that its key may have."""

from __future__ import annotations

import dataclasses

from tests.reference_tables import CONFIG_SECTIONS
from trainer.allowed_values import allowed, require_allowed
from trainer.config.build import coerce, field_types


def test_every_default_is_a_value_that_its_key_may_have() -> None:
    ruled = 0
    for prefix, cls, _ in CONFIG_SECTIONS:
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
