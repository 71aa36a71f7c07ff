"""`filter`: the rows that meet every condition, in their order.

python -m trainer.data filter manifest.csv good.csv --min-frames 52 --min-resolution 360p --checked
python -m trainer.data filter scored.csv best.csv --where 'score_vmafmotion >= 2.5' --where 'text !~ logo'

An empty cell meets no condition but `column == ` and `column != x`. A row with a cell that cannot be
compared (a word where a number belongs) is left out and listed.
"""

from __future__ import annotations

import argparse
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.pipeline import Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.table_io import Batch, numbers
from trainer.data.tools.check import COLUMN, GOOD
from trainer.data.tools.left_out import tell_left_out
from trainer.data.tools.probe import SIZE

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|==|!=|!~|<|>|~)\s*(.*?)\s*", re.DOTALL)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# option name -> column; each has a --min- and a --max- form
BOUNDS = {
    "frames": "num_frames",
    "height": "height",
    "width": "width",
    "resolution": "resolution",
    "fps": "fps",
    "aspect": "aspect_ratio",
    "size": SIZE,
}


@dataclass(frozen=True)
class Condition:
    """`column` `sign` `value`: an order of numbers, equality, or a regular expression (~, !~)."""

    column: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises ManifestError for what is no condition."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ManifestError(f"--where {text!r}: not COLUMN <, <=, >, >=, ==, !=, ~ or !~ VALUE")
        condition = cls(*found.groups())
        if condition.sign in _ORDER and math.isnan(condition.number):
            raise ManifestError(f"--where {text!r}: {condition.value!r} is not a number")
        if condition.sign in ("~", "!~"):
            try:
                re.compile(condition.value)
            except re.error as error:
                raise ManifestError(f"--where {text!r}: {error}") from None
        return condition

    @property
    def number(self) -> float:
        """The value as a number, NaN when it is none."""
        return float(numbers([self.value])[0])

    def holds(self, values: Sequence[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each value: whether the condition holds, and whether that can be told."""
        known = np.ones(len(values), bool)
        if self.sign in ("~", "!~"):
            found = [bool(re.search(self.value, str("" if v is None else v))) for v in values]
            return np.array(found, bool) == (self.sign == "~"), known
        if self.sign in _ORDER:
            have = numbers(values)
            empty = np.array([value is None or value == "" for value in values], bool)
            return _ORDER[self.sign](have, self.number), ~np.isnan(have) | empty
        texts = ["" if value is None else str(value) for value in values]
        equal = np.array([text == self.value for text in texts], bool)
        if not math.isnan(self.number):  # 24 is 24.0
            equal |= numbers(values) == self.number
        return equal == (self.sign == "=="), known

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.value}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="manifest to write")
    for name, column in BOUNDS.items():
        for end in ("min", "max"):
            parser.add_argument(f"--{end}-{name}", metavar=name.upper(), help=_help(end, column))
    parser.add_argument("--checked", action="store_true", help="only clips that `check` found ok")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="any column: 'vmaf > 2', 'lang == en', 'text ~ regular expression'",
    )
    add_options(parser)


def _help(end: str, column: str) -> str:
    what = {
        "resolution": "resolution (height x width) in pixels, or a name: 720p",
        SIZE: "file_size in bytes, or 50M, 1G",
    }.get(column, column)
    return f"{'least' if end == 'min' else 'greatest'} {what}"


def conditions(args: argparse.Namespace) -> list[Condition]:
    """What the options say. Raises ManifestError for a value that is none."""
    found = []
    for name, column in BOUNDS.items():
        for end, sign in (("min", ">="), ("max", "<=")):
            given = getattr(args, f"{end}_{name}")
            if given is not None:
                found.append(Condition(column, sign, _bound(f"--{end}-{name}", column, given)))
    if args.checked:
        found.append(Condition(COLUMN, "==", GOOD))
    found += [Condition.parse(text) for text in args.where]
    if not found:
        raise ManifestError(
            "filter by what?", hint="--min-frames 52, --where 'vmaf > 2', …: --help"
        )
    return found


def _bound(option: str, column: str, given: str) -> str:
    size = re.fullmatch(r"([\d.]+)([KMG])B?", given.upper()) if column == SIZE else None
    if size:
        given = str(float(size[1]) * _UNITS[size[2]])
    elif column == "resolution" and math.isnan(numbers([given])[0]):
        from trainer.data.plan.aspect import resolution

        given = str(resolution(given).pixels)
    if math.isnan(numbers([given])[0]):
        raise ManifestError(f"{option} {given!r} is not a number")
    return given


def run(args: argparse.Namespace) -> int:
    """Write the rows that meet every condition."""
    wanted = conditions(args)
    columns = tuple(dict.fromkeys(condition.column for condition in wanted))
    state: dict[str, Any] = {}

    def prepare(job: Any, _: Any) -> None:
        nonlocal state
        state = job.state
        state.setdefault("read", 0)
        state.setdefault("missed", [0] * len(wanted))

    def give(batch: Batch, _: Any) -> Result:
        keep = np.ones(len(batch), bool)
        wrong: list[WrongRow] = []
        for number, condition in enumerate(wanted):
            values = batch.column(condition.column)
            holds, known = condition.holds(values)
            for place in np.flatnonzero(~known & keep).tolist():
                shown = repr(values[place])[:60]
                wrong.append(WrongRow(batch.lines[place], f"{condition.column} is {shown}"))
            state["missed"][number] += int((keep & known & ~holds).sum())
            keep &= known & holds
        state["read"] += len(batch)
        if keep.all():
            return batch, wrong
        return batch.take(np.flatnonzero(keep).tolist()), sorted(wrong, key=lambda row: row.line)

    plan = Plan(
        "filter",
        [args.source],
        {"conditions": [str(condition) for condition in wanted]},
        required=columns,
        prepare=prepare,
        give=give,
    )
    done = run_plan(plan, args.out, Options.of(args))
    print(f"{done.out}: {done.rows:,} of {done.state['read']:,} rows")
    for condition, count in zip(wanted, done.state["missed"], strict=True):
        print(f"{count:>10,}  not {condition}")
    tell_left_out(done.wrong)
    return done.exit_code
