"""Which kernel attends, by the kind of attention and the number of keys.

Without a table an accelerator gets what arithmetic and reports favour; `python -m trainer.bench
attention --write FILE` measures and writes a table, which the key `attention_table` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError, nearest
from trainer.models.attention import flash3
from trainer.runlog.json_file import read_object

KERNELS: dict[str, tuple[str, ...]] = {
    "spatial": ("flash", "efficient", "cudnn", "math"),
    "temporal": ("frames", "products", "flash", "efficient", "cudnn", "math"),
    "text": ("varlen", "efficient", "cudnn", "math"),
}
# What `trainer.bench attention --write` says of a table beside its rows.
_HEADER = ("schema", "device_name", "torch", "date", "command", "flash", "not_measured")
_MOST_BYTES = 1 << 20
_SHOWN = 60  # characters of a wrong value
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
    hint = f"python -m trainer.bench attention --write {path}"
    try:
        data = read_object(Path(path), _MOST_BYTES, once=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"attention_table {path} cannot be read: {why}", hint=hint) from None
    try:
        return _table(data)
    except ConfigError as error:
        raise ConfigError(f"attention_table {path}: {error}", hint=error.hint or hint) from None


def _table(data: Mapping[str, Any]) -> Table:
    for key in data:
        if key not in (*_HEADER, *KERNELS):
            raise ConfigError(
                f"{_shown(key)} is not a name that a table has", hint=nearest(key, KERNELS)
            )
    if (schema := data.get("schema", 1)) != 1:
        raise ConfigError(f"schema {_shown(schema)} is not the one that is known, 1")
    flash = data.get("flash", "FA2")
    if flash not in flash3.NAMES:
        raise ConfigError(f"flash {_shown(flash)} is not one of {', '.join(flash3.NAMES)}")
    return Table(**{kind: _rows(data.get(kind), kind) for kind in KERNELS}, flash=flash)


def _rows(data: Any, kind: str) -> Rows:
    found: list[tuple[int | None, str]] = []
    for row in data if isinstance(data, list) else []:
        if not isinstance(row, list) or len(row) != 2:
            raise ConfigError(f"{kind} has no pair of keys and kernel: {_shown(row)}")
        most, name = row
        if most is not None and (type(most) is not int or most < 1):
            raise ConfigError(f"{kind} has no number of keys: {_shown(most)}")
        if name not in KERNELS[kind]:
            names = ", ".join(KERNELS[kind])
            raise ConfigError(f"{kind} {_shown(name)} is not one of {names}")
        before = found[-1][0] if found else 0
        if before is None:
            raise ConfigError(f"{kind} has a row behind the one without a limit: {_shown(row)}")
        if most is not None and most <= before:
            raise ConfigError(f"{kind} has {_shown(most)} keys behind {_shown(before)}: they rise")
        found.append((most, name))
    if not found:
        raise ConfigError(f"there are no rows for {kind}")
    return tuple(found)


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]
