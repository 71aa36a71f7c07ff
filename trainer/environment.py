"""A package that this Python lacks, said in one sentence by every command of the trainer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.errors import TrainerError

TRAINING = (
    "numpy",
    "torch",
    "av",
    "safetensors",
)  # no command of the trainer does without them all
_HINT = "make venv makes an environment that has everything (docs/install.md)"


class MissingPackages(TrainerError):
    """This Python has no training environment."""

    exit_code = 2

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"this Python has no {', '.join(names)}: {sys.executable}", hint=_HINT)


def require(*names: str) -> None:
    """Exit with code 2 where a package is not installed.

    For modules that are run with -m and import such packages at their head: called before that.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print(MissingPackages(missing).told(), file=sys.stderr)
        sys.exit(2)


@contextmanager
def missing_packages() -> Iterator[None]:
    """Turn a failed import into `MissingPackages`; of our own modules it stays a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name == __package__:
            raise
        raise MissingPackages([name]) from None
