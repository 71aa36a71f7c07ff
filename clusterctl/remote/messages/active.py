"""Checks that an answer of the payload `active` fits its order: keys and numbers of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What an answer holds that is no error, by the order; of `files` and `work` by what is to be done.
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
# The list of an answer, and that of its order: one for each.
_PAIRS = {"start": ("ranks", "devices"), "work": ("answers", "orders"), "knock": ("why", "where")}


def misfit(order: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """What is wrong with an answer as an answer to `order`; None when it fits or tells an error."""
    if answer.get("error"):
        return None
    op = order["op"]
    wrong = _missing(order["ask"]["do"] if op == "files" else op, answer)
    if wrong is None and op in _PAIRS:
        told, asked = _PAIRS[op]
        if len(answer[told]) != len(order[asked]):
            return f"{told} should be {len(order[asked])}, are {len(answer[told])}"
    if wrong is None and op == "work":
        for job, one in zip(order["orders"], answer["answers"], strict=True):
            wrong = wrong or (None if one.get("error") else _missing(job["do"], one))
    return wrong


def _missing(what: str, answer: Mapping[str, Any]) -> str | None:
    return next(
        (f"{name} should be there" for name in _NEEDED.get(what, ()) if name not in answer), None
    )
