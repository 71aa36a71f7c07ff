"""The processes on the nodes that hold torch: start them, let them multiply matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.facts import DeviceSpeed, Maybe, Unknown
from clusterctl.preflight.active.plan import Plan
from clusterctl.remote.session_pool import Answer, SessionPool

SLACK_S = 25.0  # beyond the products themselves: the first one plans kernels


def start_ranks(
    pool: SessionPool, plan: Plan, names: Sequence[str], addresses: Mapping[str, str]
) -> dict[str, str]:
    """Start what is not running on these nodes; returns why it cannot be had, by node."""
    text = (Path(__file__).parents[2] / "payload" / "active_rank.py").read_text(encoding="utf-8")
    orders = {}
    for name in names:
        devices = ["cpu"]
        if plan.device == "cuda":
            devices = [f"cuda:{at}" for at in range(plan.devices[name])]
        peer = next(
            (addresses[one] for one in plan.nodes if one != name and one in addresses), None
        )
        orders[name] = {
            "op": "start",
            "python": plan.python,
            "text": text,
            "devices": devices,
            "env": dict(plan.env),
            "peer": peer,
        }
    answers = pool.ask(orders, plan.start_s)
    failed = {}
    for name in names:
        if name not in answers:
            failed[name] = pool.lost.get(name, "no answer")
        elif (why := _why_not(answers[name], plan)) is not None:
            failed[name] = why
    return failed


def _why_not(answer: Answer, plan: Plan) -> str | None:
    errors = [answer.get("error"), *(one.get("error") for one in answer.get("ranks", ()))]
    first = next((error for error in errors if error), None)
    if first is not None and "No module named 'torch'" in first:
        return f"torch is not installed for {plan.python} there"
    return first


def measure_speeds(
    pool: SessionPool, plan: Plan, unable: Mapping[str, str], fail_share: float
) -> dict[str, Maybe[tuple[DeviceSpeed, ...]]]:
    """Matrix products on every device of every node at once; who is slow is asked once more.

    The better try counts: whoever only came at a bad moment is not slow.
    """
    names = [name for name in plan.nodes if name not in unable and name not in pool.lost]
    speeds = _ask(pool, plan, names)
    for name in plan.nodes:
        if name not in names:
            speeds[name] = Unknown(unable.get(name) or pool.lost.get(name, "not asked"))
    values = sorted(one.tflops for found in speeds.values() for one in _known(found))
    if not values:
        return speeds
    # Close to the limit of a warning counts as slow here: a second try costs two seconds.
    limit = (
        max(fail_share, 0.95 if plan.device == "cuda" else fail_share) * values[len(values) // 2]
    )
    slow = [name for name in names if any(one.tflops < limit for one in _known(speeds[name]))]
    for name, again in _ask(pool, plan, [one for one in slow if one not in pool.lost]).items():
        first = _known(speeds[name])
        if _known(again):
            speeds[name] = tuple(
                max(pair, key=lambda one: one.tflops)
                for pair in zip(first, _known(again), strict=True)
            )
        else:
            speeds[name] = again
    return {name: speeds[name] for name in plan.nodes}


def _known(found: Maybe[tuple[DeviceSpeed, ...]]) -> tuple[DeviceSpeed, ...]:
    return () if isinstance(found, Unknown) else found


def _ask(
    pool: SessionPool, plan: Plan, names: Sequence[str]
) -> dict[str, Maybe[tuple[DeviceSpeed, ...]]]:
    if not names:
        return {}
    one: dict[str, Any] = {"do": "matmul", "seconds": plan.matmul_s}
    orders = {name: {"op": "work", "orders": [one] * plan.devices[name]} for name in names}
    answers = pool.ask(orders, plan.matmul_s + SLACK_S)
    return {
        name: _read(answers.get(name), pool.lost.get(name, "no answer"), plan) for name in names
    }


def _read(answer: Answer | None, lost: str, plan: Plan) -> Maybe[tuple[DeviceSpeed, ...]]:
    if answer is None:
        return Unknown(f"lost while it multiplied matrices: {lost}")
    told = answer.get("answers")
    if not told:
        return Unknown(str(answer.get("error", "no answer")))
    found = []
    for at, one in enumerate(told):
        device = f"cuda:{at}" if plan.device == "cuda" else "cpu"
        if one.get("error"):
            return Unknown(f"{device}: {one['error']}")
        found.append(DeviceSpeed(device, one["model"], one["tflops"], one["finite"]))
    return tuple(found)
