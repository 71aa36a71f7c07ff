"""`check`: decode every clip once; the result is a column, so nothing unread passes as good.

python -m trainer.data check manifest.csv checked.csv
python -m trainer.data filter checked.csv good.csv --checked
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trainer.data.manifest.manifest import WrongRow
from trainer.data.manifest.pipeline import Done, Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.table_io import Batch, numbers, path_fault, usable
from trainer.data.tools.file_probe import Answer, add_pool_options, answers, make_pool, questions
from trainer.data.tools.left_out import tell_left_out

COLUMN, GOOD = "check", "ok"
EXAMPLES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="the same with a column check: ok, or the reason")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")
    add_pool_options(parser, 120.0)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Decode all frames of every clip and compare with the columns; all rows are kept."""
    done = check(args)
    report = Report.of(done)
    print(json.dumps(report.document()) if args.json else report.text())
    tell_left_out(done.wrong)
    return 1 if done.wrong or report.bad else 0


class Report:
    """How many clips are good, and the reasons of the others with a few examples of each."""

    def __init__(self, done: Done) -> None:
        self.out, self.rows = done.out, done.rows
        self.reasons: dict[str, int] = dict(done.state.get("reasons", {}))
        self.examples: dict[str, list[str]] = dict(done.state.get("examples", {}))

    @classmethod
    def of(cls, done: Done) -> Report:
        return cls(done)

    @property
    def bad(self) -> int:
        return sum(self.reasons.values())

    def text(self) -> str:
        lines = [f"{self.out}: {self.rows:,} rows, {self.rows - self.bad:,} ok, {self.bad:,} not"]
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            lines.append(f"{count:>8,}  {reason}")
            lines += [f"          {path}" for path in self.examples[reason]]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "command": "check",
            "out": str(self.out),
            "rows": self.rows,
            "ok": self.rows - self.bad,
            "reasons": self.reasons,
            "examples": self.examples,
        }


def check(args: argparse.Namespace) -> Done:
    """The work of the verb. Raises ManifestError, ExamineBroken."""
    pool, ahead = make_pool(args)
    folder = args.root or args.source.resolve().parent
    state: dict[str, Any] = {}

    def ask(batch: Batch) -> tuple[Batch, list[WrongRow], list[Future[Answer]]]:
        good, wrong = usable(batch, [("path", path_fault)])
        asked = questions("check", good.column("path"), folder)
        return good, wrong, [pool.ask(question) for question in asked]

    def give(_: Batch, asked: tuple[Batch, list[WrongRow], list[Future[Answer]]]) -> Result:
        batch, wrong, futures = asked
        results = verdicts(batch, answers(futures))
        counts = Counter(state["reasons"])
        for path, result in zip(batch.column("path"), results, strict=True):
            if result != GOOD:
                reason = group(result)
                counts[reason] += 1
                examples = state["examples"].setdefault(reason, [])
                if len(examples) < EXAMPLES:
                    examples.append(path if result == reason else f"{path}: {result}")
        state["reasons"] = dict(counts)
        return batch.with_columns({COLUMN: results}), wrong

    def prepare(job: Any) -> None:
        nonlocal state
        state = job.state
        state.setdefault("reasons", {})
        state.setdefault("examples", {})

    plan = Plan(
        "check",
        args.source,
        {"root": str(args.root or ""), "clip_timeout_s": args.clip_timeout_s},
        required=("path",),
        names=lambda present: [*(name for name in present if name != COLUMN), COLUMN],
        ask=ask,
        give=give,
        prepare=prepare,
        read_rows=64,
        ahead=ahead,
    )
    try:
        return run_plan(plan, args.out, Options.of(args))
    finally:
        pool.close()


def verdicts(batch: Batch, found: list[Any]) -> list[str]:
    """`ok` or the reason of each row; the manifest's numbers are compared where it has them."""
    results = [str(answer.get("error", GOOD)) for answer in found]
    for name, what in (("num_frames", "frames"), ("height", "rows"), ("width", "columns")):
        if name not in batch.names:
            continue
        for place, said in enumerate(numbers(batch.column(name))):
            if results[place] != GOOD:
                continue
            has = found[place][name]
            # More frames than stated do no harm; fewer would be a window beyond the end.
            if has < said if name == "num_frames" else has != said:
                stated = f"{said:g}" if said == said else "nothing"
                results[place] = f"has {has} {what}, the manifest says {stated}"
    return results


def group(result: str) -> str:
    """Results that differ in numbers only are one reason in the report."""
    words = ["N" if word.strip(",").isdigit() else word for word in result.split()]
    return " ".join(words)
