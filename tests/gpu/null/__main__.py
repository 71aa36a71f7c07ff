"""Run a command on the null GPU: python -m tests.gpu.null FOLDER COMMAND [WORDS]

FOLDER is what `make null-gpu` made, build/null-gpu. The command's Python is that of FOLDER/venv.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.gpu.null.environment import environment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.null", allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("command")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    own = environment(args.folder, devices=args.devices)
    os.execvpe(args.command, [args.command, *args.words], {**os.environ, **own})


if __name__ == "__main__":
    sys.exit(main())
