"""Ranks forked behind the starter's imports, with a GPU in sight: whether CUDA starts in them.

python -m tests.gpu.null.programs.forks OUT.json ENGINE
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.gpu.null import counters
from trainer.starter import preload


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("engine")
    args = parser.parse_args()
    # This machine has no driver; with one, imports see the cards, as here.
    preload._has_gpu = lambda: True
    program = ["-m", "trainer.train", "stage1", "--engine", args.engine]
    preload.preload(["trainer.starter.train_modules"], program)
    used = counters.own().devices_used()
    imported = sorted(name for name in ("torch", "colossalai") if name in sys.modules)
    codes = [os.waitstatus_to_exitcode(os.waitpid(_forked(card), 0)[1]) for card in range(2)]
    from tests.gpu.null.programs.training import leave

    leave(args.out, {"imported": imported, "used": used, "codes": codes})


def _forked(card: int) -> int:
    """A rank that computes on its card; exits with 3 where CUDA cannot start in it."""
    if child := os.fork():
        return child
    import torch

    if preload.cannot_be_forked():
        os._exit(3)
    torch.cuda.set_device(card)
    made = torch.ones(4, device=f"cuda:{card}") + 1
    os._exit(0 if made.is_cuda and counters.own().devices_used() == [card] else 4)


if __name__ == "__main__":
    main()
