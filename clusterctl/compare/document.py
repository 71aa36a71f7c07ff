"""A comparison as the JSON document of `clusterctl compare --json`."""

from __future__ import annotations

import math
from typing import Any

from clusterctl.compare.judge import Comparison
from clusterctl.compare.losses import Losses, Window
from clusterctl.compare.read import Run
from clusterctl.compare.speed import Rates, Timing
from clusterctl.compare.windows import Middle


def run_json(run: Run, found: Rates) -> dict[str, Any]:
    """One run: what it is, and what it achieved. Keys are only ever added."""
    attempts = run.account.attempts
    return {
        "run": str(run.run_dir),
        "first_step": int(run.steps[0]),
        "last_step": int(run.steps[-1]),
        "steps": len(run.steps),
        "attempts": len(attempts),
        "ending": (attempts[-1].ending if attempts else "") or "running",
        "unread_lines": run.unread,
        "world": found.world,
        "device": run.device or None,
        "clips_per_s": found.clips_per_s,
        "tokens_per_s": found.tokens_per_s,
        "flops_per_s_of_rank": found.flops_s,
        "mfu": found.mfu,
        "idle_share": found.idle_share,
        "memory_bytes": None if found.memory_bytes is None else int(found.memory_bytes),
        "ettr": found.ettr,
        "restarts": found.restarts,
        "incidents": dict(found.incidents),
    }


def comparison_json(found: Comparison) -> dict[str, Any]:
    """B against A. Shares are of A's value: 0.01 is 1 %."""
    same, speed = found.same, found.speed
    return {
        "run": str(found.b.run_dir),
        "common_steps": same.common,
        "bit_equal_to_step": same.loss_to,
        "gradients_bit_equal_to_step": same.grad_to,
        "bit_equal": same.is_all,
        "losses": {one.by: _losses(one) for one in (found.steps, found.clips)},
        "judged_by": found.judged.by,
        "validation": _validation(found),
        "step_s": {name: _timing(one) for name, one in speed.phases.items()},
        "step_s_of_buckets": {name: _timing(one) for name, one in speed.buckets.items()},
        "slowdown": {**_middle(speed.slowdown, 1.0), "unknown": speed.why or None},
        "changes": found.changes.to_json()["changes"],
        "changes_not_recorded": list(found.changes.not_recorded),
        "limits": [
            {"what": one.what, "limit": one.limit, "verdict": one.verdict, "why": one.why or None}
            for one in found.verdicts
        ],
        "exit_code": found.exit_code,
    }


def _validation(found: Comparison) -> list[dict[str, Any]]:
    """At every step that both were measured after."""
    a, b = found.a.validations, found.b.validations
    return [
        {
            "step": step,
            "clips": {"a": a[step].clips, "b": b[step].clips},
            "model": {"a": a[step].model, "b": b[step].model},
            "ema": {"a": a[step].ema, "b": b[step].ema},
        }
        for step in sorted(a.keys() & b.keys())
    ]


def _losses(found: Losses) -> dict[str, Any]:
    if found.why:
        return {"unknown": found.why}
    parts = found.parts
    return {
        "first": found.first,
        "last": found.last,
        "paired": found.is_paired,
        "last_half": {**_middle(found.half, abs(found.base)), "base": _finite(found.base)},
        "not_finite": list(found.bad),
        "parts_at": _window(parts) if parts is not None else None,
        "parts_unknown": found.why_no_parting or None,
        "windows": [_window(one) for one in found.windows],
    }


def _window(one: Window) -> dict[str, Any]:
    known = one.estimate
    return {
        "first": one.first,
        "last": one.last,
        "base": known.base,
        "difference": known.difference,
        "error": known.error,
    }


def _middle(found: Middle | None, base: float) -> dict[str, Any]:
    """The median of windows and its interval of 95 %, as shares of `base`."""
    if found is None or not base:
        return {"share": None, "share_low": None, "share_high": None, "windows": 0}
    values = (found.value, found.low, found.high)
    shares = [None if value is None else value / base for value in values]
    names = ("share", "share_low", "share_high")
    return {**dict(zip(names, shares, strict=True)), "windows": found.count}


def _timing(one: Timing) -> dict[str, float | None]:
    return {"a": one.a, "b": one.b, "change": one.change}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
