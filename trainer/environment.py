"""Packages that this Python lacks, reported alike by every command of the trainer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainer.errors import TrainerError
from trainer.runlog.output import configure, report_error

TRAINING = (
    "numpy",
    "torch",
    "av",
    "safetensors",
)  # no command of the trainer does without them all
_HINT = "make venv makes an environment that has everything (docs/guide/install.md)"


class MissingPackages(TrainerError):
    """This Python has no training environment."""

    exit_code = 2


def _missing(names: Sequence[str]) -> MissingPackages:
    return MissingPackages(f"this Python has no {', '.join(names)}: {sys.executable}", hint=_HINT)


def of_import(error: ModuleNotFoundError) -> MissingPackages | None:
    """A failed import as an error; None for our own modules, which stays a bug."""
    name = (error.name or "").partition(".")[0]
    return _missing([name]) if name and name != __package__ else None


def require(*names: str) -> None:
    """Exit with code 2 where a package is not installed.

    For modules that are run with -m and import such packages at their head: called before that.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        configure()
        sys.exit(report_error(_missing(missing)))


@contextmanager
def missing_packages() -> Iterator[None]:
    """Turn a failed import into `MissingPackages`; of our own modules it stays a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = of_import(error)
        if missing is None:
            raise
        raise missing from None
