"""Trials of `trainer.bench` on the null GPU: what they hold, and what was predicted, as JSON.

python -m tests.gpu.null.programs.trials OUT.json
"""

from __future__ import annotations

import argparse
import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.gpu.null import counters
from tests.gpu.null.kinds import by_kind
from tests.gpu.null.programs.training import leave
from tests.gpu.null.traffic import Traffic
from trainer.allocator import use_expandable_segments
from trainer.bench.shapes import shapes_of
from trainer.bench.trial import Spec, Trainee
from trainer.config import load as configuration

ALL, OFF = ("--grad-checkpoint", "all"), ("--grad-checkpoint", "off")
EAGER = ("--fused-blocks", "false", "--compile", "false")
FP8 = ("--fp8-linears", "true")
# Name: bucket, clips (None: the recipe's), words of the config, whether frames are given.
TRIALS: dict[str, tuple[str, int | None, tuple[str, ...], bool]] = {
    "as much as fits": ("360p:51", None, (), False),
    "all recomputed": ("360p:51", None, ALL, False),
    "frames given": ("360p:102", None, ALL, True),
    "nothing recomputed, one clip": ("360p:51", 1, OFF, False),
    "nothing recomputed, frames given": ("240p:51", 1, OFF, True),
    "nothing recomputed, pictures": ("256:1", 8, OFF, False),
    "every second": ("144p:51", 8, ("--grad-checkpoint", "every 2"), False),
    "a size": ("360p:51", 2, ("--grad-checkpoint", "40 GB"), False),
    "offloaded": ("360p:51", 2, ("--offload-activations", "true", *ALL), False),
    "offloaded, kept": ("144p:51", 4, ("--offload-activations", "true", *OFF), False),
    "eager": ("360p:51", 8, (*EAGER, *ALL), False),
    "eager, nothing recomputed": ("240p:51", 1, (*EAGER, *OFF), False),
    "eager, pictures": ("144p:1", None, (*EAGER, *ALL), False),
    "fp8": ("360p:51", None, (*FP8, *ALL), False),
    "fp8, as much as fits": ("360p:51", None, FP8, False),
    "deterministic": ("240p:51", 4, ("--deterministic", "true", *ALL), False),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=list(TRIALS))
    args = parser.parse_args()
    use_expandable_segments(os.environ)
    found = {name: measured(*TRIALS[name]) for name in args.only}
    leave(args.out, {"trials": found, "refusal": counters.own().refusal})


def measured(
    bucket: str, clips: int | None, words: tuple[str, ...], masked: bool
) -> dict[str, Any]:
    """The second of two steps."""
    config = configuration.load("stage1", list(words))
    (shape,) = shapes_of(config, (bucket,))
    shape = replace(shape, batch_size=clips or shape.batch_size)
    spec = Spec(config, shape, "cuda", 300, masked=masked, shards=192)
    if config.deterministic:
        from trainer.device import be_deterministic

        be_deterministic()
    trainee = Trainee(spec, torch.device("cuda"))
    trainee.step()
    torch.cuda.reset_peak_memory_stats()
    counters.reset()
    trainee.step()
    own, predicted = counters.own(), trainee.predicted_mb(spec)
    assert predicted is not None
    found = {
        "clips": shape.batch_size,
        "launches": own.launches,
        "waits": own.waits,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "predicted_bytes": predicted * 1e6,
        "product_flops": own.flops,
        "kernels": by_kind(counters.kernels()),
    }
    with Traffic() as counted:
        trainee.step()
    found["elementwise_bytes"] = counted.total
    del trainee
    gc.collect()
    torch.cuda.empty_cache()
    torch.use_deterministic_algorithms(False)
    return found


if __name__ == "__main__":
    main()
