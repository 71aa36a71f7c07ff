"""Checks that an answer of the payload `active` fits its order: keys and numbers of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys of an answer without an error, by the order; for `files` and `work` by the task in it.
_NEEDED = {
    "start": ("ranks",),
    "work": ("answers",),
    "door": ("port", "addresses"),
    "knock": ("why",),
    "write": ("seconds",),
    "watch": ("seen_s",),
    "read": ("bytes", "seconds"),
    "matmul": ("model", "tflops", "finite"),
    "host": ("port",),
    "group": ("reduce_s",),
}
# Lists of equal length: one of the answer, one of its order.
_PAIRS = {"start": ("ranks", "devices"), "work": ("answers", "orders"), "knock": ("why", "where")}


def misfit(order: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """What is wrong with an answer to `order`; None when it fits or reports an error."""
    if answer.get("error"):
        return None
    op = order["op"]
    wrong = _missing(order["ask"]["do"] if op == "files" else op, answer)
    if wrong is None and op in _PAIRS:
        found, wanted = _PAIRS[op]
        if len(answer[found]) != len(order[wanted]):
            return f"{found} should be {len(order[wanted])}, are {len(answer[found])}"
    if wrong is None and op == "work":
        for job, one in zip(order["orders"], answer["answers"], strict=True):
            wrong = wrong or (None if one.get("error") else _missing(job["do"], one))
    return wrong


def _missing(task: str, answer: Mapping[str, Any]) -> str | None:
    missing = [name for name in _NEEDED.get(task, ()) if name not in answer]
    return f"{missing[0]} should be there" if missing else None
