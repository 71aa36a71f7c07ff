"""Print a config as it is resolved: python -m trainer.config show CONFIG [--json] [--key VALUE ...]"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from trainer.config.load import as_python, load, to_dict
from trainer.errors import TrainerError

USAGE = "usage: python -m trainer.config show CONFIG [--json] [--key VALUE ...]"


def main(args: Sequence[str]) -> int:
    """Exit code 0; 2 for wrong usage or a config that cannot be resolved."""
    if len(args) < 2 or args[0] != "show":
        print(USAGE, file=sys.stderr)
        return 2
    words = [word for word in args[2:] if word != "--json"]
    try:
        config = load(args[1], words)
    except TrainerError as error:
        print(error.told(), file=sys.stderr)
        return error.exit_code
    if len(words) < len(args[2:]):
        print(json.dumps({"schema": 1, "command": "config show", "config": to_dict(config)}))
    else:
        print(as_python(config), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
