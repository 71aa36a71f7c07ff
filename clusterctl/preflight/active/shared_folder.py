"""One node writes into the shared folder; all others look for it, read it, and it is removed."""

from __future__ import annotations

import secrets

from checks.facts import NOT_ASKED, SharedSeen, Unknown
from clusterctl.preflight.active.plan import Plan
from clusterctl.remote.session_pool import Answer, SessionPool

STEP_S = 60.0  # to write or to read it all


def try_shared(pool: SessionPool, plan: Plan) -> tuple[dict[str, SharedSeen], str, str]:
    """(what each node saw, who wrote, why it could not write); the folder is gone afterwards."""
    assert plan.shared is not None
    names = [name for name in plan.nodes if name not in pool.lost]
    if not names:
        return {}, "", ""
    word = secrets.token_hex(16)
    folder = str(plan.shared.absolute() / f".clusterctl-active-{word[:8]}")
    writer = names[0]
    about = {"folder": folder, "word": word, "blocks": plan.blocks, "patience_s": plan.token_s}

    def ask(do: str, who: list[str], timeout_s: float) -> dict[str, Answer]:
        orders = {name: {"op": "files", "ask": {**about, "do": do}} for name in who}
        return pool.ask(orders, timeout_s) if orders else {}

    try:
        wrote = ask("write", [writer], STEP_S).get(writer) or {"error": _lost(pool, writer)}
        if "error" in wrote:
            seen = {
                name: SharedSeen(Unknown("nobody wrote"), Unknown("nobody wrote")) for name in names
            }
            seen[writer] = SharedSeen(
                Unknown(wrote["error"]), Unknown(wrote["error"]), bool(wrote.get("hung"))
            )
            return seen, writer, str(wrote["error"])
        looked = ask("watch", names, plan.token_s + 5.0)
        able = [name for name, answer in looked.items() if "error" not in answer]
        read = ask("read", able, STEP_S)
        fast = sorted(_speed(answer) for answer in read.values() if "error" not in answer)
        if fast:
            slow = [
                name
                for name, one in read.items()
                if "error" not in one and _speed(one) < fast[len(fast) // 2] / 2
            ]
            for name, again in ask("read", slow, STEP_S).items():
                if "error" not in again and _speed(again) > _speed(read[name]):
                    read[name] = again  # it only came at a bad moment
    finally:
        left = (
            [writer]
            if writer not in pool.lost
            else [name for name in names if name not in pool.lost][:1]
        )
        ask("remove", left, 10.0)
    return {name: _seen(pool, name, looked, read) for name in names}, writer, ""


def _seen(
    pool: SessionPool, name: str, looked: dict[str, Answer], read: dict[str, Answer]
) -> SharedSeen:
    one = looked.get(name)
    if one is None:
        why = Unknown(_lost(pool, name))
        return SharedSeen(why, why)
    if "error" in one:
        return SharedSeen(Unknown(one["error"]), Unknown(one["error"]), bool(one.get("hung")))
    two = read.get(name)
    if two is None:
        return SharedSeen(one["seen_s"], Unknown(_lost(pool, name)))
    if "error" in two:
        return SharedSeen(one["seen_s"], Unknown(two["error"]), bool(two.get("hung")))
    return SharedSeen(one["seen_s"], _speed(two) if two["bytes"] else NOT_ASKED)


def _speed(answer: Answer) -> float:
    return float(answer["bytes"]) / max(1e-6, float(answer["seconds"]))


def _lost(pool: SessionPool, name: str) -> str:
    return f"could not be asked: {pool.lost.get(name, 'no answer')}"
