"""One exception per cause, with exit code and hint. Imports nothing: every command loads it."""

from __future__ import annotations


class ClusterctlError(Exception):
    """An expected failure: `cli.py` prints the sentence, lines of `more` and the hint, without a
    traceback. A line break in one of them is shown as text."""

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, more: list[str] | tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.more = more


class UsageError(ClusterctlError):
    """Wrong usage or configuration."""

    exit_code = 2


class HostfileError(UsageError):
    """The hostfile or a node set cannot be read; the message names file and line."""


class CouldNotFindOut(ClusterctlError):
    """The question was right, the answer could not be read; never shown as good."""

    exit_code = 3


class Declined(ClusterctlError):
    """The user declined, or could not be asked and `--yes` was not given."""

    exit_code = 4


class LaunchFailed(ClusterctlError):
    """The run ended badly; the message names the first rank and its last lines."""


class TransportError(ClusterctlError):
    """One node could not be talked to. `phase` is one of `transport.base.PHASES`."""

    exit_code = 3

    def __init__(self, phase: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.phase = phase


class NoAnswer(TransportError):
    """Nothing at all came from the node: it is off, or cut off from here."""


class OutputLost(ClusterctlError):
    """Standard output cannot be written to: the disk is full, or its reader has gone."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
