"""An explanation as the JSON document of `clusterctl why --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clusterctl.payload.secrets.mask import hide, hide_in
from clusterctl.why.explain import Explanation


def to_json(found: Explanation) -> dict[str, Any]:
    """Keys are only ever added (docs/reference/json.md)."""
    verdict = found.verdict
    cause = verdict.cause if verdict else None
    return {
        "run": str(found.run_dir),
        "state": found.state,
        "text": found.text,
        "attempt": found.number,
        "attempts": [
            {
                "attempt": one.number,
                "began_s": one.began_s,
                "ended_s": one.ended_s,
                "nodes": list(one.nodes),
                "first_step": one.first,
                "last_step": one.last,
                "ending": one.ending or "running",
                "text": hide(one.text),
            }
            for one in found.attempts
        ],
        "cause": hide_in(cause.to_json()) if cause else None,
        "why_not": verdict.why_not or None if verdict else None,
        "candidates": [hide_in(one.to_json()) for one in verdict.candidates] if verdict else [],
        "ranks": list(verdict.ranks) if verdict else [],
        "recorded": verdict.is_recorded if verdict else False,
        "signature": found.signature or None,
        "meaning": found.meaning or None,
        "advice": found.advice or None,
        "log": found.log or None,
        "lines": list(found.context),
        "followed": dict(found.victims),
        "clues": list(found.clues),
        "stacks": found.stacks or None,
        "changes": found.changes.to_json() if found.changes else None,
        "slow": [
            {
                "rank": spell.slow.rank,
                "host": spell.slow.host or None,
                "share": spell.slow.share,
                "seconds": spell.slow.seconds,
                "phase": spell.slow.phase,
                "also": list(spell.slow.also),
                "since_step": spell.slow.since_step,
                "until_step": spell.until_step,
                "reasons": [hide_in(asdict(reason)) for reason in spell.slow.reasons],
                "not_compared": list(spell.slow.not_compared),
            }
            for spell in found.slow
        ],
        "not_read": dict(found.unread),
        "exit_code": found.exit_code,
    }
