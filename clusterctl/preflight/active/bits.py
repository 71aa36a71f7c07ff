"""Products and copies that are compared bit by bit: ask for them, and find the wrong values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from checks.facts import (
    NOT_ASKED,
    DeviceCopies,
    DeviceProducts,
    Difference,
    Maybe,
    RepeatedProduct,
    Unknown,
    WrongCopy,
)
from checks.rules.computing import comparable, right_one
from clusterctl.preflight.active.plan import COPIES_S, LOCATE_S, PRODUCTS_SLACK_S, Plan
from clusterctl.remote.session_pool import Answer, SessionPool

MOST_LOCATED = 3  # products whose wrong values are found; the others are named without
CROSSINGS = 64  # rows and columns whose values are compared
Products = dict[str, Maybe[tuple[DeviceProducts, ...]]]
Copies = dict[str, Maybe[tuple[DeviceCopies, ...]]]


def compare_products(pool: SessionPool, plan: Plan, unable: Mapping[str, str]) -> Products:
    """Seeded products on every device at once; wrong values of what differs from the majority."""
    job = {"do": "products", "seconds": plan.products_s}
    answers = _ask(pool, plan, unable, job, plan.products_s + PRODUCTS_SLACK_S)
    found: Products = {}
    for name in plan.nodes:
        one = answers[name]
        if isinstance(one, Unknown):
            found[name] = one
            continue
        ranks = zip(plan.device_names(name), one, strict=True)
        found[name] = tuple(_read_products(device, answer) for device, answer in ranks)
    return _locate(pool, plan, found)


def compare_copies(pool: SessionPool, plan: Plan, unable: Mapping[str, str]) -> Copies:
    """A pattern copied to, within and from every device; then between the devices of each node."""
    alone, between = plan.copied_bytes
    answers = _ask(pool, plan, unable, {"do": "copies", "bytes": alone}, COPIES_S)
    pairs: dict[str, Maybe[list[Answer]]] = {}
    if plan.shared_nodes:
        orders = {
            name: [{"do": "between", "bytes": between, "devices": plan.device_names(name)}]
            for name in plan.shared_nodes
            if not isinstance(answers[name], Unknown)
        }
        pairs = _send(pool, orders, COPIES_S)
    found: Copies = {}
    for name in plan.nodes:
        one = answers[name]
        if isinstance(one, Unknown):
            found[name] = one
            continue
        devices = zip(plan.device_names(name), one, strict=True)
        copies = [_read_copies(device, answer) for device, answer in devices]
        if name in pairs:
            last = pairs[name]
            answer = {"error": str(last)} if isinstance(last, Unknown) else last[0]
            copies.append(_read_copies("between", answer))
        found[name] = tuple(copies)
    return found


def _ask(
    pool: SessionPool, plan: Plan, unable: Mapping[str, str], job: dict[str, Any], timeout_s: float
) -> dict[str, Maybe[list[Answer]]]:
    """The same order for each device; a node that could not be asked is Unknown with the reason."""
    names = [name for name in plan.nodes if name not in unable and name not in pool.lost]
    reasons = {name: unable.get(name) or pool.lost.get(name, "not asked") for name in plan.nodes}
    answers = _send(pool, {name: [job] * plan.devices[name] for name in names}, timeout_s)
    return {name: answers.get(name, Unknown(reasons[name])) for name in plan.nodes}


def _send(
    pool: SessionPool, jobs: Mapping[str, Sequence[dict[str, Any]]], timeout_s: float
) -> dict[str, Maybe[list[Answer]]]:
    orders = {name: {"op": "work", "orders": list(job)} for name, job in jobs.items()}
    answers = pool.ask(orders, timeout_s)
    found: dict[str, Maybe[list[Answer]]] = {}
    for name in jobs:
        answer = answers.get(name, {"error": f"lost: {pool.lost.get(name, 'no answer')}"})
        ranks = answer.get("answers")
        found[name] = ranks if ranks else Unknown(str(answer.get("error", "no answer")))
    return found


def _read_products(device: str, answer: Answer) -> DeviceProducts:
    if answer.get("error"):
        return DeviceProducts(device, products=Unknown(str(answer["error"])))
    products = tuple(
        RepeatedProduct(
            one["kind"],
            one["count"],
            one["others"],
            one["sum"],
            Difference(**one["differs"]) if "differs" in one else None,
        )
        for one in answer["products"]
    )
    memory_bytes = answer.get("memory_bytes", NOT_ASKED)
    return DeviceProducts(device, answer["kin"], products, answer["side"], memory_bytes)


def _read_copies(device: str, answer: Answer) -> DeviceCopies:
    if answer.get("error"):
        return DeviceCopies(device, Unknown(str(answer["error"])))
    wrong = tuple(
        WrongCopy(one["step"], Difference(one["values"], one.get("bits"), one.get("at")))
        for one in answer["wrong"]
    )
    return DeviceCopies(device, answer["steps"], wrong, answer.get("sum", ""), answer["kin"])


def _locate(pool: SessionPool, plan: Plan, found: Products) -> Products:
    """What differs from the majority, with the values that do."""
    left = MOST_LOCATED
    for (_kin, kind), members in comparable(found).items():
        right = right_one(one.sum for one in members.values())
        good = next((where for where, one in members.items() if one.sum == right), None)
        for (node, device), one in members.items():
            if good is None or one.sum == right or not left:
                continue
            left -= 1
            differs = _compare(pool, plan, kind, (node, device), good, LOCATE_S / MOST_LOCATED / 2)
            if differs is not None:
                found[node] = _with_difference(found[node], device, kind, differs)
    return found


def _with_difference(
    devices: Maybe[tuple[DeviceProducts, ...]], device: str, kind: str, differs: Difference
) -> Maybe[tuple[DeviceProducts, ...]]:
    changed = []
    for one in () if isinstance(devices, Unknown) else devices:
        if one.device == device and not isinstance(one.products, Unknown):
            products = [
                replace(product, from_majority=differs) if product.kind == kind else product
                for product in one.products
            ]
            changed.append(replace(one, products=tuple(products)))
        else:
            changed.append(one)
    return tuple(changed)


def _compare(
    pool: SessionPool,
    plan: Plan,
    kind: str,
    bad: tuple[str, str],
    good: tuple[str, str],
    timeout_s: float,
) -> Difference | None:
    """The values that differ between two devices' products; None where they could not be had."""

    def ask(job: dict[str, Any]) -> list[Answer] | None:
        names = dict.fromkeys(name for name, _ in (bad, good) if name not in pool.lost)
        answers = _send(pool, {name: [job] * plan.devices[name] for name in names}, timeout_s)
        one = [_of(answers, plan, where) for where in (bad, good)]
        got = [answer for answer in one if answer is not None and not answer.get("error")]
        return got if len(got) == len(one) else None

    lines = ask({"do": "lines", "kind": kind})
    if lines is None:
        return None
    rows, columns = (_changed(lines[0][key], lines[1][key]) for key in ("rows", "columns"))
    if not rows or not columns:
        return None
    if max(len(rows), len(columns)) > CROSSINGS:
        return Difference(max(len(rows), len(columns)))  # at least
    values = ask({"do": "values", "kind": kind, "rows": rows, "columns": columns})
    if values is None:
        return None
    flips = [one ^ two for one, two in zip(values[0]["found"], values[1]["found"], strict=False)]
    first = next((at for at, flip in enumerate(flips) if flip), 0)
    width = len(lines[0]["columns"]) // 8
    at = rows[first // len(columns)] * width + columns[first % len(columns)]
    ones = sum(bin(flip).count("1") for flip in flips)
    return Difference(sum(1 for flip in flips if flip), ones, at)


def _of(
    answers: Mapping[str, Maybe[list[Answer]]], plan: Plan, where: tuple[str, str]
) -> Answer | None:
    ranks = answers.get(where[0], Unknown("not asked"))
    if isinstance(ranks, Unknown):
        return None
    return ranks[plan.device_names(where[0]).index(where[1])]


def _changed(one: str, two: str) -> list[int]:
    """Positions of the checksums, 8 digits each, that differ."""
    return [at // 8 for at in range(0, len(one), 8) if one[at : at + 8] != two[at : at + 8]]
