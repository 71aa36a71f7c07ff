"""What the trainer's command lines share: parser, numbers, errors, packages that are missing."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import logging
import math
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, TypeVar, cast

from trainer.errors import TrainerError
from trainer.runlog.output import LOG, Printable, configure, report_error

N = TypeVar("N", int, float)
NUMBERS = ("numpy", "torch", "safetensors")  # no command of the trainer works without them
TRAINING = (*NUMBERS, "av")  # for those that read or write clips
INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT)
READER_GONE = 141  # as a shell reports SIGPIPE (head, less)
Main = Callable[[Sequence[str] | None], int]
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
LEVEL_VARIABLE = "TRAINER_LOG_LEVEL"


class Parser(ArgumentParser):
    """Of `python -m trainer.NAME`; parsing sets the log level."""

    def __init__(self, name: str, description: str, **options: Any) -> None:
        lines = RawDescriptionHelpFormatter
        super().__init__(
            f"python -m trainer.{name}", description=description, formatter_class=lines, **options
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        self.add_argument(  # last in the help
            "--log-level",
            type=_level,
            default=os.environ.get(LEVEL_VARIABLE, "info"),
            metavar="LEVEL",
            help=f"{', '.join(LEVELS)}; default ${LEVEL_VARIABLE}, else info",
        )
        found, rest = super().parse_known_args(args, namespace)
        configure(found.log_level)
        return found, rest


def _level(text: str) -> int:
    if text not in LEVELS:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(LEVELS)}")
    return LEVELS[text]


def _number(kind: Callable[[str], N], holds: Callable[[N], bool], what: str) -> Callable[[str], N]:
    def convert(text: str) -> N:
        with contextlib.suppress(ValueError):
            number = kind(text)
            if holds(number):
                return number
        raise ArgumentTypeError(f"{text!r} must be {what}")

    return convert


def whole(least: int = 0) -> Callable[[str], int]:
    """A whole number from `least` on."""
    return _number(int, lambda number: number >= least, f"an integer of at least {least}")


above_0 = _number(float, lambda number: 0 < number < math.inf, "a number above 0")
finite = _number(float, math.isfinite, "a finite number")


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


@contextlib.contextmanager
def missing_packages() -> Iterator[None]:
    """Turn a failed import into `MissingPackages`; of our own modules it stays a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = of_import(error)
        if missing is None:
            raise
        raise missing from None


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Names in files of others reach the terminal only as text, however they are printed."""
    out, err = (cast("TextIO", Printable(one)) for one in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def command(main: Main) -> Callable[..., int]:
    """Around a `main`: expected errors, Ctrl-C and a closed pipe become exit codes."""

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        configure()
        try:
            try:
                with missing_packages(), printable_output():
                    return main(argv)
            finally:
                _flush()
        except TrainerError as error:
            return report_error(error) if is_reporter(error) else error.exit_code
        except KeyboardInterrupt:
            LOG.error("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            _drop_output()
            return READER_GONE
        except OSError as error:
            if error.errno not in _FULL:
                raise
            LOG.error("error: %s: %s", error.filename or "what this prints", error.strerror)
            _drop_output()
            return TrainerError.exit_code

    return run


def _drop_output() -> None:
    """What Python still has to flush at its end would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def is_reporter(error: TrainerError) -> bool:
    """Whether this rank reports an error: of those that many share, one per run or node does."""
    if error.on_all_ranks:
        return os.environ.get("RANK", "0") == "0"
    return error.exit_code != 2 or os.environ.get("LOCAL_RANK", "0") == "0"


def _flush() -> None:
    """Raises OSError of a closed pipe or a full disk; a terminal that is gone reads nothing."""
    try:
        print(end="", flush=True)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.EPIPE, *_FULL):
            raise
