"""What a start notes of its settings."""

from __future__ import annotations

import pytest

from trainer.build_run import _without_effect
from trainer.config.load import load


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], None),
        (["--fp8-linears", "true"], None),  # simulated, which has a line of its own
        (["--compile", "true"], None),
        (["--fused-blocks", "false", "--attention-table", "h100.json"], "attention_table, fused_blocks"),
        (["--compile", "true", "--fp8-linears", "true"], "compile (with fp8_linears)"),
    ],
)  # fmt: skip
def test_settings_that_do_nothing_on_a_cpu_are_named(words: list[str], names: str | None) -> None:
    config = load("demo", words)
    told = [] if names is None else [f"on a CPU these settings change nothing: {names}"]
    assert _without_effect(config, "cpu") == told
    assert _without_effect(config, "cuda") == []
