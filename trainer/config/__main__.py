"""Print a config with all its defaults and overrides: python -m trainer.config show CONFIG."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from trainer.config.load import as_python, load, to_dict
from trainer.environment import command
from trainer.runlog.output import add_log_level, configure


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for wrong usage or a config that cannot be resolved."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.config",
        description="Print a config with all its defaults and overrides.",
        usage="%(prog)s show CONFIG [--json] [--key VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=("show",), metavar="show")
    parser.add_argument("config", metavar="CONFIG", help="file, or short name of trainer/configs")
    parser.add_argument("--json", action="store_true", help="one document instead of Python")
    add_log_level(parser)
    args, overrides = parser.parse_known_args(argv)
    configure(args.log_level)
    config = load(args.config, overrides)
    if args.json:
        print(json.dumps({"schema": 1, "command": "config show", "config": to_dict(config)}))
    else:
        print(as_python(config), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
