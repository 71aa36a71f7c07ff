"""Which kernel attends, by the kind of attention and the number of keys.

Without a table an accelerator gets what arithmetic and reports favour; `python -m trainer.bench
attention --write FILE` measures and writes a table, which the key `attention_table` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.models.attention import flash3

KERNELS: dict[str, tuple[str, ...]] = {
    "spatial": ("flash", "efficient", "cudnn", "math"),
    "temporal": ("frames", "products", "flash", "efficient", "cudnn", "math"),
    "text": ("varlen", "efficient", "cudnn", "math"),
}
Rows = tuple[tuple[int | None, str], ...]  # (most keys, kernel), rising; None has no limit


@dataclass(frozen=True, slots=True)
class Table:
    """Kernels on an accelerator; the CPU has its own rule (`attention.short`).

    cuDNN is in none of the defaults: it plans every new shape again, 0.4 to 1 s forward and
    backward (modelscope/FunASR #3704, torch 2.11), and stage 1 has 626 shapes.
    """

    spatial: Rows = ((None, "flash"),)
    temporal: Rows = ((128, "frames"), (None, "flash"))
    text: Rows = ((None, "varlen"),)
    flash: str = "FA2"  # what flash and varlen are; FA3 is `attention.flash3`

    def choose(self, kind: str, keys: int) -> str:
        """The kernel for `keys` keys: that of the last row, when the table ends before."""
        rows: Rows = getattr(self, kind)
        return next((name for most, name in rows if most is None or keys <= most), rows[-1][1])


def read_table(path: str | Path) -> Table:
    """A table from a file of `trainer.bench attention --write`. Raises ConfigError."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        hint = f"python -m trainer.bench attention --write {path}"
        raise ConfigError(f"attention_table {path} cannot be read: {error}", hint=hint) from None
    if not isinstance(data, Mapping):
        raise ConfigError(f"attention_table {path} holds no table")
    flash = data.get("flash", "FA2")
    if flash not in flash3.NAMES:
        known = ", ".join(flash3.NAMES)
        raise ConfigError(f"attention_table {path}: flash {flash!r} is not one of {known}")
    rows = {kind: _rows(data.get(kind), kind, path) for kind in KERNELS}
    return Table(**rows, flash=flash)


def _rows(data: Any, kind: str, path: str | Path) -> Rows:
    rows = data if isinstance(data, list) else []
    for row in rows:
        is_pair = isinstance(row, list) and len(row) == 2
        if not is_pair or not (row[0] is None or isinstance(row[0], int)):
            raise ConfigError(
                f"attention_table {path}: {kind} has no pair of keys and kernel: {row}"
            )
        if row[1] not in KERNELS[kind]:
            names = ", ".join(KERNELS[kind])
            raise ConfigError(f"attention_table {path}: {kind} {row[1]!r} is not one of {names}")
    if not rows:
        raise ConfigError(f"attention_table {path} has no rows for {kind}")
    return tuple((row[0], row[1]) for row in rows)
