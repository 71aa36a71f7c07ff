"""A failure of one rank is raised on all: what ranks do together they end together.

A rank that raises between two collectives leaves the others waiting in the next one. So what a rank
does by itself is attempted, and all ranks raise the same error or none. Where ranks cannot meet any
more (in a forward pass) the failed one ends, which breaks the others' connections: `is_lost`.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from trainer.command_line import of_import
from trainer.errors import TrainerError, one_line

T = TypeVar("T")
_SHOWN = 4  # ranks of one reason that are named
# Of gloo's sockets, of NCCL and of torch's store: somebody else has gone.
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "connection was likely closed",
    "broken pipe",
    "failed to recv",
    "remote process exited",
    "pair closure",
    "ncclremoteerror",
)


def attempt(work: Callable[[], T]) -> tuple[T | None, TrainerError | None]:
    """What `work` returns, or why it failed; an unexpected error is logged with its traceback."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - rank boundary: raised on all ranks
        return None, in_words(error)


def in_words(error: Exception) -> TrainerError:
    """Any error as an expected one; a fault of the program leaves its traceback with this rank."""
    if isinstance(error, TrainerError):
        return error
    if isinstance(error, ModuleNotFoundError) and (missing := of_import(error)) is not None:
        return missing
    if not isinstance(error, (OSError, MemoryError)):
        traceback.print_exception(error)
    return TrainerError(one_line(error))


def common(failures: Sequence[TrainerError | None], prefix: str = "") -> TrainerError | None:
    """The error that all ranks raise, or None: kind and hint of the first, each reason once."""
    alike: dict[str, list[int]] = {}
    for rank, error in enumerate(failures):
        if error is not None:
            alike.setdefault(str(error).removeprefix(f"rank {rank}: "), []).append(rank)
    if not alike:
        return None
    texts = []
    for text, ranks in alike.items():
        more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
        who = f"rank {', '.join(map(str, ranks[:_SHOWN]))}{more}: "
        texts.append(text if len(ranks) == len(failures) else who + text)
    first = next(error for error in failures if error is not None)
    return agreed(first, prefix + "\n".join(texts))


def agreed(error: TrainerError, text: str | None = None) -> TrainerError:
    """An error as all ranks raise it alike, in its own words or in `text`."""
    ours = copy.copy(error)
    ours.args = (str(error) if text is None else text,)
    ours.on_all_ranks = True
    return ours


def is_lost(error: BaseException) -> bool:
    """Whether an error of a collective says that another rank has gone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _LOST)
