"""Items of a group, one child process each: a crash, a hang or no memory is a result like others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once, CUDA is not started by it
    until = time.monotonic() + budget_s
    rows: list[dict[str, Any]] = []
    for item in items:
        limit_s = min(item.limit_s, until - time.monotonic())
        if limit_s > 0:
            row = _run(context, item, options, limit_s)
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


def _run(context: Any, item: Item, options: Options, limit_s: float) -> dict[str, Any]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, item, options), daemon=False)
    start = time.monotonic()
    process.start()
    theirs.close()
    answer: dict[str, Any] | None = None
    try:
        if ours.poll(limit_s):
            answer = ours.recv()
    except (EOFError, OSError):
        pass  # it died without an answer: its exit code says how
    late = answer is None and process.is_alive() and time.monotonic() - start >= limit_s
    process.join(10 if answer is not None else 0 if late else 2)
    if process.is_alive():
        _kill_group(process.pid)
        process.join(10)
    if answer is None:
        code = process.exitcode
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        answer = {"error": f"no result in {limit_s:.0f} s" if late else ended}
    return {"item": item.name, "seconds": round(time.monotonic() - start, 2), **answer}


def _kill_group(pid: int | None) -> None:
    """The child with its own children."""
    if pid is not None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)


def _child(connection: Connection, item: Item, options: Options) -> None:
    os.setsid()
    try:
        answer: dict[str, Any] = {"result": item.work(options, *item.args)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        (options.out / "errors").mkdir(exist_ok=True)
        name = item.name.replace("/", "_").replace(" ", "_")
        (options.out / "errors" / f"{name}.txt").write_text(traceback.format_exc())
        first = (str(error).strip().splitlines() or [""])[0]
        answer = {"error": f"{type(error).__name__}: {first}"[:300].removesuffix(": ")}
    connection.send(answer)
