"""What a rank prints. A full disk, a closed pipe or a character that the terminal lacks never ends a run."""

from __future__ import annotations

import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """A line to stdout or `stream`, at once.

    What the encoding of the stream lacks is escaped (a file name that is not UTF-8). A line that cannot
    be written is lost: telemetry.jsonl has it, too.
    """
    stream = sys.stdout if stream is None else stream
    try:
        stream.write(text + "\n")
        stream.flush()
    except UnicodeEncodeError as error:
        say(text.encode(error.encoding, "backslashreplace").decode(error.encoding), stream)
    except (OSError, ValueError):  # ValueError: it is closed
        pass


def all_is_out() -> bool:
    """Whether nothing is left to print. Python's own end would turn what is into exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return False
    return True
