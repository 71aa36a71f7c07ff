"""The shape of a line of the payload `watch`: the keys it has, each with a reading of bounded size.

dashboards/feeds/watch_decoder.py decodes the readings and shows a wrong one as unknown. Here only
the size is bounded, because a stream is kept, with any unknown key.
"""

from __future__ import annotations

from typing import Any

from clusterctl.dataclass_json import Misshapen
from clusterctl.remote.messages.shape import number, record, text, whole
from trainer.runlog.output import printable

ROW_KEYS = frozenset(("disks", "procs"))
INDEXES = 64  # GPUs or links of one node: more than any has
PLAIN_KEYS = "cpus driver up cpu load1 mem net gpus gpu_error csv links xlog"
KEYS = ROW_KEYS.union(
    PLAIN_KEYS.split(), (f"{family}{index}" for family in "ghlL" for index in range(INDEXES))
)
ROWS, COLUMNS = 256, 16
WORD = 1024  # characters of a path, a process's name, an error

_csv = text(64 << 10, lines=True)
_PLAIN = frozenset((int, float, bool, type(None)))


def watch(value: Any) -> dict[str, Any]:
    """{"n", "key" or "d", perhaps "step" and "x"}, or {"pong", "t"}."""
    if type(value) is dict and "pong" in value:
        return _pong(value)  # type: ignore[no-any-return]
    frame: dict[str, Any] = _frame(value)
    if ("key" in frame) == ("d" in frame):
        raise Misshapen("a key frame or a change", value)
    return frame


def _changes(value: Any) -> dict[str, Any]:
    # By hand, not by shapes: one second of a thousand nodes must be read in a tenth of that.
    if type(value) is not dict:
        raise Misshapen("an object", value)
    found = {}
    for key, one in value.items():
        if key not in KEYS:
            raise Misshapen("absent", one, f".{printable(key[:60])}")
        if type(one) is list and len(one) <= COLUMNS and _PLAIN.issuperset(map(type, one)):
            found[key] = one
            continue
        try:
            is_csv = key == "csv" and one is not None
            found[key] = _csv(one) if is_csv else reading(one, 2 if key in ROW_KEYS else 1)
        except Misshapen as error:
            raise error.below(f".{key}") from None
    return found


def reading(value: Any, depth: int = 2) -> Any:
    """A number, a text, a flag, null, or a list of those or of lists of those."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str and len(value) <= WORD:
        return printable(value)
    if kind is list and depth and len(value) <= (ROWS if depth == 2 else COLUMNS):
        return [reading(one, depth - 1) for one in value]
    raise Misshapen(f"a reading of at most {ROWS} rows of {COLUMNS} columns", value)


_frame = record(
    {"n": whole(0)}, {"key": _changes, "d": _changes, "step": number(-1e12, 1e12), "x": reading}
)
_pong = record({"pong": whole(0), "t": number(0, 1e12)})
