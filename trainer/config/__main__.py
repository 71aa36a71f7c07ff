"""Print a config with all its defaults and overrides: python -m trainer.config show CONFIG."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from trainer.command_line import Parser, command
from trainer.config.load import as_python, load, to_dict


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for wrong usage or a config that cannot be resolved."""
    what = "Print a config with all its defaults and overrides."
    usage = "%(prog)s show CONFIG [--json] [--key VALUE ...]"
    parser = Parser("config", what, usage=usage, allow_abbrev=False)
    parser.add_argument("command", choices=("show",), metavar="show")
    parser.add_argument("config", metavar="CONFIG", help="file, short name, or run directory")
    parser.add_argument("--json", action="store_true", help="one document instead of Python")
    args, overrides = parser.parse_known_args(argv)
    config = load(args.config, overrides)
    if args.json:
        print(json.dumps({"schema": 1, "command": "config show", "config": to_dict(config)}))
    else:
        print(as_python(config), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
