"""What a process of the trainer prints: logging, set up once. No output failure ends a run.

Loggers below `trainer` write to stderr, `RUN` (what a run reports of its steps) to stdout. Data
that a user pipes, tables and JSON, is no log: `print`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from trainer.errors import TrainerError

LOG = logging.getLogger("trainer")
RUN = logging.getLogger("trainer.run")


class _Handler(logging.Handler):
    """One line a record; the stream is that of the moment. Errors name their rank themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        is_error, text = record.levelno >= logging.ERROR, record.getMessage()
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        if not is_error and (rank := os.environ.get("RANK", "0")) != "0":
            text = f"rank {rank}: {text}"
        is_report = record.name == RUN.name and record.levelno < logging.WARNING
        write(f"{text}\n", sys.stdout if is_report else sys.stderr)


_HANDLER = _Handler()


def configure(level: int = logging.INFO) -> None:
    """Set up the trainer's loggers; a second call changes the level only."""
    LOG.setLevel(level)
    LOG.propagate = False
    LOG.addHandler(_HANDLER)


def report_error(error: TrainerError) -> int:
    """Log what a command prints of it; returns its exit code."""
    LOG.error(error.full_text())
    return error.exit_code


def write(text: str, stream: TextIO) -> None:
    """Write and flush. What the encoding lacks is escaped (a file name that is not UTF-8).

    What cannot be written (a full disk, a closed pipe) is lost here; telemetry.jsonl has it.
    """
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError as error:
        write(text.encode(error.encoding, "backslashreplace").decode(error.encoding), stream)
    except (OSError, ValueError):  # ValueError: it is closed
        pass


def all_is_out() -> bool:
    """Whether nothing is left to print; if something is, Python itself would exit with 120."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True
