"""One exception per cause for the trainer, with exit code and hint. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def nearest(name: object, known: Iterable[str], prefix: str = "") -> str | None:
    """A hint with the known name that is most like a wrong one."""
    import difflib  # here: reading a run imports this module

    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {prefix}{near[0]}?" if near else None


def one_line(error: BaseException) -> str:
    """The class of any error and the first line of what it says."""
    name, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{name}: {lines[0]}" if lines else name


class TrainerError(Exception):
    """An expected failure: the command line prints the sentence and the hint, no traceback."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.on_all_ranks = False  # raised by agreement: rank 0 reports it for all

    def full_text(self) -> str:
        """What a command prints of it: further lines are indented, so that no line break in a name
        begins a line that looks like another result."""
        first, *more = str(self).split("\n")
        lines = [f"error: {first}", *(f"  {line.removeprefix('  ')}" for line in more)]
        return "\n".join([*lines, f"  hint: {self.hint}"] if self.hint else lines)


class ConfigError(TrainerError):
    """Wrong configuration; the message names the file and line, or the flag."""

    exit_code = 2


class EngineError(TrainerError):
    """The engine cannot do what is asked on this machine."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be written or read; the message names the file."""


class PathError(CheckpointError):
    """Weights that the user names do not exist, or those to be written already do."""

    exit_code = 2


class VideoError(TrainerError):
    """A sampled video or the sheet of them cannot be written; the message names the file."""


class Diverged(TrainerError):
    """The loss is no longer a number; every rank stops at the same step."""


class TooManyBadSamples(TrainerError):
    """More clips could not be read than the configuration allows."""

    bad: Sequence[tuple[int, str, str]] = ()  # row, path and reason of those not yet in the list


class OutOfMemory(TrainerError):
    """What was asked for does not fit into the memory of this machine or device."""


class ModelInputError(TrainerError, ValueError):
    """A tensor that a model is given has another rank, size or dtype than it takes."""
