"""The processes on the nodes that hold torch: start them, let them multiply matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.facts import DeviceSpeed, Maybe, Unknown, or_none
from clusterctl.preflight.active.plan import Plan
from clusterctl.remote.session_pool import Answer, SessionPool

SLACK_S = 25.0  # beyond the products themselves: the first one plans kernels
PAYLOAD = Path(__file__).parents[2] / "payload"
Speeds = Maybe[tuple[DeviceSpeed, ...]]


def program_text() -> str:
    """The program of a rank, with the module that it imports in it."""
    names = ("module_loader.py", "torch_tests/bits.py", "torch_tests/rank.py")
    loader, bits, rank = ((PAYLOAD / name).read_text(encoding="utf-8") for name in names)
    sources = {"clusterctl.payload.torch_tests.bits": bits}
    return f"{loader}\nsys.meta_path.insert(0, Loader({sources!r}))\n{rank}"


def start_ranks(
    pool: SessionPool, plan: Plan, names: Sequence[str], addresses: Mapping[str, str]
) -> dict[str, str]:
    """Start what is not running on these nodes; returns the reason of each that has no ranks."""
    text = program_text()
    orders = {}
    for name in names:
        peers = [addresses[one] for one in plan.nodes if one != name and one in addresses]
        orders[name] = {
            "op": "start",
            "python": plan.python,
            "text": text,
            "devices": plan.device_names(name),
            "env": dict(plan.env),
            "peer": peers[0] if peers else None,
        }
    answers = pool.ask(orders, plan.start_s)
    failed = {}
    for name in names:
        answer = answers.get(name) or {"error": pool.lost.get(name, "no answer")}
        errors = [one.get("error") for one in (answer, *answer.get("ranks", ()))]
        if why := next(filter(None, errors), None):
            is_torch = "No module named 'torch'" in why
            failed[name] = f"torch is not installed for {plan.python} there" if is_torch else why
    return failed


def measure_speeds(
    pool: SessionPool, plan: Plan, unable: Mapping[str, str], fail_share: float
) -> dict[str, Speeds]:
    """Matrix products on every device of every node at once; slow nodes are asked once more.

    The better try counts: a node that was busy for a moment is not slow.
    """
    names = [name for name in plan.nodes if name not in unable and name not in pool.lost]
    speeds = _ask(pool, plan, names)
    for name in set(plan.nodes) - set(names):
        speeds[name] = Unknown(unable.get(name) or pool.lost.get(name, "not asked"))
    known = {name: or_none(found) or () for name, found in speeds.items()}
    values = sorted(one.tflops for found in known.values() for one in found)
    if values:
        # Close to the limit of a warning counts as slow here: a second try costs two seconds.
        share = max(fail_share, 0.95) if plan.device == "cuda" else fail_share
        limit = share * values[len(values) // 2]
        reached = [name for name in names if name not in pool.lost]
        slow = [name for name in reached if any(one.tflops < limit for one in known[name])]
        for name, again in _ask(pool, plan, slow).items():
            pairs = zip(known[name], or_none(again) or (), strict=False)
            speeds[name] = tuple(max(pair, key=lambda one: one.tflops) for pair in pairs) or again
    return {name: speeds[name] for name in plan.nodes}


def _ask(pool: SessionPool, plan: Plan, names: Sequence[str]) -> dict[str, Speeds]:
    one: dict[str, Any] = {"do": "matmul", "seconds": plan.matmul_s}
    orders = {name: {"op": "work", "orders": [one] * plan.devices[name]} for name in names}
    answers = pool.ask(orders, plan.matmul_s + SLACK_S)
    speeds: dict[str, Speeds] = {}
    for name in names:
        lost = f"lost while it multiplied matrices: {pool.lost.get(name, 'no answer')}"
        speeds[name] = _read(answers.get(name, {"error": lost}), plan.device_names(name))
    return speeds


def _read(answer: Answer, devices: Sequence[str]) -> Speeds:
    ranks = answer.get("answers")
    if not ranks:
        return Unknown(str(answer.get("error", "no answer")))
    found = []
    for device, one in zip(devices, ranks, strict=True):
        if one.get("error"):
            return Unknown(f"{device}: {one['error']}")
        found.append(DeviceSpeed(device, one["model"], one["tflops"], one["finite"]))
    return tuple(found)
