"""Every default is a value that its key may have."""

from __future__ import annotations

import dataclasses

import pytest

from tests.reference_tables import CONFIG_SECTIONS
from trainer.allowed_values import allowed, require_allowed
from trainer.config.build import coerce, field_types
from trainer.config.keys import Config


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


@pytest.mark.parametrize(
    ("log_every", "measured"), [(1, {1, 10, 20}), (4, {1, 10, 20}), (15, {1, 15})]
)
def test_figures_that_read_all_weights_are_taken_every_tenth_step_at_most(
    log_every: int, measured: set[int]
) -> None:
    config = Config(log_every=log_every)
    assert {step for step in range(1, 25) if config.is_measured(step)} == measured
