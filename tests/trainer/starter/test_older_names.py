"""A rank gets the names of the flight recorder's variables that its torch reads without a warning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.starter.ranks import KNOWS_NEWER, OLDER_OF, hide_older_names, torch_version

BOTH = {name: "x" for pair in OLDER_OF.items() for name in pair}


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("2.9.1+cu128", set(BOTH)),
        ("2.10.0", set(OLDER_OF)),
        ("2.13.0+cpu", set(OLDER_OF)),
        ("3.0.0a0+git1", set(OLDER_OF)),
        ("", set(BOTH)),  # nobody knows
        ("unknown", set(BOTH)),
    ],
)
def test_older_name_is_hidden_from_a_torch_that_knows_the_newer(
    version: str, kept: set[str]
) -> None:
    variables = dict(BOTH)
    hide_older_names(variables, version)
    assert set(variables) == kept


def test_older_name_alone_stays() -> None:
    variables = dict.fromkeys(OLDER_OF.values(), "x")
    hide_older_names(variables, "2.13.0")
    assert set(variables) == set(OLDER_OF.values())


@pytest.mark.long
def test_rank_starts_without_what_its_torch_warns_of() -> None:
    say = "import os; print(*sorted(name for name in os.environ if name in os.environ['NAMES'].split()))"
    command = [sys.executable, "-m", "trainer.starter", "--nproc_per_node", "1"]
    env = {**os.environ, **BOTH, "NAMES": " ".join(BOTH)}
    done = subprocess.run(
        [*command, "-m", "timeit", "-n", "1", "-r", "1", say],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    is_new = tuple(map(int, torch_version().split(".")[:2])) >= KNOWS_NEWER
    said = done.stdout.splitlines()[0]
    assert said == " ".join(sorted(OLDER_OF if is_new else BOTH))
