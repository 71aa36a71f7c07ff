"""What checkpoints of a config take on the disk: python -m trainer.checkpoint size CONFIG."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from trainer.command_line import Parser, command
from trainer.config.load import load
from trainer.runlog import units


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for wrong usage, a config that cannot be resolved, or without torch."""
    what = "Predict the size of one checkpoint from the shapes of the model; nothing is loaded."
    usage = "%(prog)s size CONFIG [--json] [--key VALUE ...]"
    parser = Parser("checkpoint", what, usage=usage, allow_abbrev=False)
    parser.add_argument("command", choices=("size",), metavar="size")
    parser.add_argument("config", metavar="CONFIG", help="file, short name, or run directory")
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    args, overrides = parser.parse_known_args(argv)
    config = load(args.config, overrides)
    from trainer.checkpoint.sizes import predicted_size  # brings torch, which a mistake needs not

    size = predicted_size(config)
    if args.json:
        sizes = {
            "model_bytes": size.model_bytes,
            "ema_bytes": size.ema_bytes,
            "optimizer_bytes": size.optimizer_bytes,
            "total_bytes": size.total_bytes,
            "extra_bytes": size.extra_bytes,
            "parameters": size.parameters,
            "trained": size.trained,
        }
        print(json.dumps({"schema": 1, "command": "checkpoint size", **sizes}))
        return 0
    print(f"parameters  {size.parameters:,}, {size.trained:,} of them trained")
    for name in ("model", "ema", "optimizer", "total"):
        print(f"{name:<10}  {units.size(getattr(size, f'{name}_bytes'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
