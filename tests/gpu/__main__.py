"""python -m tests.gpu {facts,correct,attention,steps,train,media} --out DIR [--device cpu --tiny]"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.run import Options, run_items

GROUPS = ("facts", "correct", "attention", "steps", "train", "media")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", allow_abbrev=False)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to rehearse")
    parser.add_argument("--only", metavar="TEXT", default="", help="items with TEXT in their names")
    args = parser.parse_args(argv)
    options = Options(args.out, args.device, args.tiny)
    group = importlib.import_module(f"tests.gpu.{args.group}")
    items = [item for item in group.items(options) if args.only in item.name]
    rows = run_items(args.group, items, options, group.BUDGET_S)
    failed = [row for row in rows if "error" in row]
    print(f"{len(rows) - len(failed)} of {len(rows)} measured; {args.out / args.group}.json")
    return 0 if len(failed) < len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
