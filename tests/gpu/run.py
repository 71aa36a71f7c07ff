"""Items of a group, one child process each: a crash, a hang or no memory is a result like others."""

from __future__ import annotations

import functools
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.bench.child import Kind, Progress, try_in_child


@dataclass(frozen=True, slots=True)
class Options:
    """Where results go and what they are measured on."""

    out: Path
    device: str  # cuda or cpu
    tiny: bool  # shapes that a CPU handles in seconds: a rehearsal


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement: `work(options, *args)` returns figures, `headline` among them."""

    name: str
    work: Callable[..., dict[str, Any]]
    args: tuple[Any, ...] = ()
    limit_s: float = 60.0


def run_items(
    group: str,
    items: Iterable[Item],
    options: Options,
    budget_s: float,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run what fits into `budget_s`; GROUP.json in `options.out` is complete after each item."""
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + budget_s
    rows: list[dict[str, Any]] = []
    for item in items:
        limit_s = min(item.limit_s, until - time.monotonic())
        if limit_s > 0:
            row = _run(item, options, limit_s)
        else:
            row = {"item": item.name, "seconds": 0.0, "error": "not run: the group's time is over"}
        rows.append(row)
        document = {"schema": 1, "group": group, "device": options.device, "rows": rows}
        part = options.out / f"{group}.json.part"
        part.write_text(json.dumps(document, indent=1) + "\n")
        part.replace(options.out / f"{group}.json")
        text = row["result"].get("headline", "") if "result" in row else row["error"]
        show(f"{item.name:<34} {row['seconds']:6.1f} s  {text}")
    return rows


def _run(item: Item, options: Options, limit_s: float) -> dict[str, Any]:
    start = time.monotonic()
    work = functools.partial(_work, item, options, dict(os.environ))
    outcome: Any = try_in_child(work, options.device, limit_s, lambda done, total: None)
    row = {"item": item.name, "seconds": round(time.monotonic() - start, 2)}
    if outcome.kind is Kind.MEASURED:
        return row | {"result": outcome.measured}
    return row | {"error": outcome.reason[:300]}


def _work(
    item: Item, options: Options, environment: dict[str, str], progress: Progress
) -> dict[str, Any]:
    os.environ.update(environment)  # the fork server has that of its start
    try:
        return item.work(options, *item.args)
    except Exception:
        errors, name = options.out / "errors", item.name.replace("/", "_").replace(" ", "_")
        errors.mkdir(exist_ok=True)
        (errors / f"{name}.txt").write_text(traceback.format_exc())
        raise
