"""20 crashes and hangs whose first cause is known, and 20 healthy or idle jobs: what is said of them.

Crashes are real gloo ranks, or recorded logs of NCCL; hangs and jobs are real gloo ranks on lab
nodes (root), or 192 ranks with replayed counts of NCCL. `why --logs` and `dump-stacks` judge them.

python -m tests.causes                        # all
python -m tests.causes --groups hangs,well    # crashes, hangs, well
python -m tests.causes --groups crashes --recorded
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.causes import counts, jobs, logs
from tests.causes.state import CRASH, GROUPS, HANG, NOT_MEASURED, RIGHT, WELL, WRONG, Answer
from tests.hangs.rig import Site
from tests.lab import why_not
from tests.lab.clip_mount import why_no_fuse

MAY_MISS = 1  # of crashes and hangs together


def answers(groups: list[str], folder: Path, seed: int, *, is_recorded: bool) -> Iterator[Answer]:
    draw = random.Random(seed)
    if "crashes" in groups:
        yield from logs.crashes(is_recorded=is_recorded)
    if "hangs" in groups:
        yield from counts.hangs()
    if "well" in groups:
        yield from counts.healthy()
        yield from logs.healthy()
    if {"hangs", "well"} & set(groups):
        with Site(folder) as site:
            if "hangs" in groups:
                yield from jobs.hangs(site, folder, draw)
            if "well" in groups:
                yield from jobs.healthy(site, folder, draw)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.causes", description=__doc__.split("\n")[0])
    parser.add_argument("--groups", default="crashes,hangs,well")
    parser.add_argument("--recorded", action="store_true", help="crashes by logs that were kept")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups.split(",")) - {"crashes", "hangs", "well"}:
        parser.error(f"unknown group {sorted(unknown)[0]!r}: crashes, hangs or well")
    if (reason := why_not() or why_no_fuse()) is not None:
        print(f"lab nodes: {reason}", file=sys.stderr)
        return 3
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="causes-") as folder:
        groups = options.groups.split(",")
        for one in answers(groups, Path(folder), seed, is_recorded=options.recorded):
            print(one.line, flush=True)
            found.append(one)
    return summary(found)


def summary(found: list[Answer]) -> int:
    """Print the table; 1 where a name is wrong or too much was missed, 3 where not all was measured."""
    for group in GROUPS:
        mine = [one for one in found if one.group == group and one.result != NOT_MEASURED]
        right = sum(one.result == RIGHT for one in mine)
        wrong = sum(one.result == WRONG for one in mine)
        what = "without a verdict" if group == WELL else "right"
        print(f"{group:16} {right:2} of {len(mine):2} {what}, {wrong} wrong")
    missed = [one for one in found if one.result not in (RIGHT, NOT_MEASURED)]
    if any(one.result == WRONG or one.group == WELL for one in missed):
        return 1
    if sum(one.group in (CRASH, HANG) for one in missed) > MAY_MISS:
        return 1
    return 3 if any(one.result == NOT_MEASURED for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
