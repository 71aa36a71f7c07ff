"""Names of checkpoints in a run directory: `epoch{E}-global_step{G}`."""

from __future__ import annotations

import re

_NAME = re.compile(r"epoch(\d+)-global_step(\d+)")


def checkpoint_name(epoch: int, step: int) -> str:
    return f"epoch{epoch}-global_step{step}"


def epoch_and_step(name: str) -> tuple[int, int] | None:
    """None for a name that is no checkpoint's."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None
