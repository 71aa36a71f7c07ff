"""475 captions through an encoder of T5-XXL's sizes on the null GPU: bytes beside its weights.

python -m tests.gpu.null.programs.captions OUT.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tests.gpu.null import counters
from tests.gpu.null.programs.training import leave
from trainer.bench.encoders import XXL, random_text

CAPTIONS, TOKENS = 475, 300  # 144p:1 of stage 1


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda")
    encoder = random_text(XXL, TOKENS, TOKENS, torch.bfloat16, device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y, _ = encoder.encode([""] * CAPTIONS)
    found = {
        "weights": before,
        "beside": torch.cuda.max_memory_allocated() - before,
        "features": y.numel() * y.element_size(),
        "budget": encoder.budget.bytes(device),
        "refusal": counters.own().refusal,
    }
    leave(args.out, found)


if __name__ == "__main__":
    main()
