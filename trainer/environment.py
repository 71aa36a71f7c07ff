"""What the commands of the trainer share: errors, a closed pipe, packages that are missing."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trainer.errors import TrainerError
from trainer.runlog.output import LOG, configure, report_error

TRAINING = ("numpy", "torch", "av", "safetensors")  # no command of the trainer works without them
INTERRUPTED = 130
READER_GONE = 141  # as a shell reports SIGPIPE (head, less)
Main = Callable[[Sequence[str] | None], int]


class MissingPackages(TrainerError):
    """This Python has no training environment."""

    exit_code = 2


def _missing(names: Sequence[str]) -> MissingPackages:
    hint = "make venv makes an environment that has everything (docs/guide/install.md)"
    return MissingPackages(f"this Python has no {', '.join(names)}: {sys.executable}", hint=hint)


def of_import(error: ModuleNotFoundError) -> MissingPackages | None:
    """A failed import as an error; None for our own modules, which stays a bug."""
    name = (error.name or "").partition(".")[0]
    return _missing([name]) if name and name != __package__ else None


def require(*names: str) -> None:
    """Exit with code 2 where a package is not installed: before a module run with -m imports it."""
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


def command(main: Main) -> Callable[..., int]:
    """Around a `main`: expected errors, Ctrl-C and a closed pipe become exit codes."""

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        configure()
        try:
            try:
                with missing_packages():
                    return main(argv)
            finally:
                _flush()
        except TrainerError as error:
            return report_error(error) if is_reporter(error) else error.exit_code
        except KeyboardInterrupt:
            LOG.error("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python flushes at its end
            return READER_GONE

    return run


def is_reporter(error: TrainerError) -> bool:
    """Whether this rank reports an error: of those that many share, one per run or node does."""
    if error.on_all_ranks:
        return os.environ.get("RANK", "0") == "0"
    return error.exit_code != 2 or os.environ.get("LOCAL_RANK", "0") == "0"


def _flush() -> None:
    """Raises BrokenPipeError; a full disk is reported by Python at its end, with exit code 120."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except (OSError, ValueError):
        pass
