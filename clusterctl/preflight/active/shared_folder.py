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
    writer, word = names[0], secrets.token_hex(16)
    folder = str(plan.shared.absolute() / f".clusterctl-active-{word[:8]}")
    about = {"folder": folder, "word": word, "blocks": plan.blocks, "patience_s": plan.token_s}

    def ask(do: str, nodes: list[str], timeout_s: float) -> dict[str, Answer]:
        orders = {name: {"op": "files", "ask": {**about, "do": do}} for name in nodes}
        answers = pool.ask(orders, timeout_s)
        for name in set(nodes) - set(answers):
            answers[name] = {"error": f"could not be asked: {pool.lost.get(name, 'no answer')}"}
        return answers

    try:
        wrote = ask("write", [writer], STEP_S)[writer]
        if "error" in wrote:
            nothing = _seen({"error": "nobody wrote"}, {})
            seen = {**dict.fromkeys(names, nothing), writer: _seen(wrote, {})}
            return seen, writer, str(wrote["error"])
        watched = ask("watch", names, plan.token_s + 5.0)
        read = ask("read", [name for name in names if "error" not in watched[name]], STEP_S)
        speeds = {name: _speed(answer) for name, answer in read.items() if "error" not in answer}
        middle = sorted(speeds.values())[len(speeds) // 2] if speeds else 0.0
        slow = [name for name, speed in speeds.items() if speed < middle / 2]
        for name, again in ask("read", slow, STEP_S).items():
            if "error" not in again and _speed(again) > speeds[name]:
                read[name] = again  # slow only for a moment
    finally:
        ask("remove", [name for name in names if name not in pool.lost][:1], 10.0)
    return {name: _seen(watched[name], read.get(name, {})) for name in names}, writer, ""


def _seen(watched: Answer, read: Answer) -> SharedSeen:
    if "error" in watched:
        why = Unknown(watched["error"])
        return SharedSeen(why, why, bool(watched.get("hung")))
    if "error" in read:
        return SharedSeen(watched["seen_s"], Unknown(read["error"]), bool(read.get("hung")))
    return SharedSeen(watched["seen_s"], _speed(read) if read["bytes"] else NOT_ASKED)


def _speed(answer: Answer) -> float:
    return float(answer["bytes"]) / max(1e-6, float(answer["seconds"]))
