"""Step time, or the largest batch, of every bucket: `python -m trainer.bench CONFIG [options]`."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from trainer.command_line import NUMBERS, Parser, above_0, command, require, whole

if __name__ == "__main__":  # before the imports that need them
    require(*NUMBERS)

from trainer.config import load as configuration
from trainer.errors import ConfigError

PATHS = ("plain", "lambda")
_DESCRIPTION = """\
Training steps on random latents, bucket by bucket: seconds by phase (medians), tokens/s, TFLOP/s
and MFU of forward and backward pass (recomputation apart, as "again"), peak memory. Each bucket
runs in its own process. Any key of the config is an option too: --dtype fp32, --fp8-linears.
On a busy machine CPU steps with more than one thread take many times as long: --threads 1.

With --search-batch-size, the largest batch of each bucket within --budget-s and --budget-mb,
printed as a bucket_config.

`python -m trainer.bench attention --help`: which kernel attends fastest, by the number of keys."""
_EPILOG = """\
examples
  python -m trainer.bench demo --threads 1 --compare plain
  python -m trainer.bench stage1 --shards 192 --compare plain,lambda --encoders --bucket 360p:51
  python -m trainer.bench stage1 --shards 192 --bucket 360p:102 --bucket 720p:51
  python -m trainer.bench stage1 --shards 192 --search-batch-size --budget-s 12 \\
      --budget-mb 120000"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["attention"]:
        from trainer.bench import attention

        return attention.main(words[1:])
    args, overrides = _parser().parse_known_args(words)
    config = configuration.load(args.config, overrides)
    if (args.budget_s or args.budget_mb) and not args.search_batch_size:
        raise ConfigError("--budget-s and --budget-mb need --search-batch-size")
    args.compare = [name for names in args.compare or () for name in names]
    for option in ("compare", "encoders"):
        if getattr(args, option) and args.search_batch_size:
            raise ConfigError(f"--{option} cannot be used with --search-batch-size")
    if args.tiny_encoders and not args.encoders:
        raise ConfigError("--tiny-encoders needs --encoders")
    from trainer.bench.buckets import Bench  # after the arguments: it imports torch

    bench = Bench(args, config)
    return bench.search() if args.search_batch_size else bench.measure()


def _parser() -> Parser:
    parser = Parser("bench", _DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    count: dict[str, Any] = {"type": whole(1), "metavar": "N"}
    positive: dict[str, Any] = {"type": above_0, "metavar": "X"}
    own = "default %(default)s"
    add = parser.add_argument
    add("config", help="config file or its short name")
    add("--bucket", action="append", metavar="NAME:FRAMES", help="only this one, e.g. 360p:102")
    add("--aspect-ratio", metavar="H:W", help="of the clips; default 9:16, or the nearest there is")
    add("--batch-size", **count, help="default the bucket's")
    what = (
        "also run the model as Open-Sora 1.2 does: explicit fp32 softmax, modulation twice, every "
        "block checkpointed (plain); or with its kernels switched on, as Lambda ran it (lambda)"
    )
    add("--compare", action="append", type=_paths, metavar="plain,lambda", help=what)
    add("--encoders", action="store_true", help="also time VAE and text encoder on the microbatch")
    add("--tiny-encoders", action="store_true", help="small ones, to rehearse without a GPU")
    what = (
        "auto, off, all, 'every 2', or memory for activations, '24 GB'; default as the config does"
    )
    add("--grad-checkpoint", metavar="WHAT", help=what)
    add("--offload", action="store_true", help="kept activations wait in host memory")
    way = parser.add_mutually_exclusive_group()
    what = "torch.compile of each block, also where our kernels would run"
    way.add_argument("--compile", action="store_true", help=what)
    what = "blocks of torch's operations, neither compiled nor by our kernels"
    way.add_argument("--eager", action="store_true", help=what)
    what = "give some frames, as training with mask_ratios does; default as the config does"
    add("--masks", choices=("config", "on", "off"), default="config", help=what)
    add("--text-tokens", **count, help="of each caption; default all")
    add("--shards", **count, default=1, help=f"ranks that share the optimizer's state; {own}")
    add("--warmup", **count, default=2, help=f"steps before the timed ones; {own}")
    add("--steps", **count, default=5, help=f"timed steps, whose median counts; {own}")
    what = "of torch on the CPU; default the config's threads, OMP_NUM_THREADS, else all cores"
    add("--threads", **count, help=what)
    add("--device", help="cuda or cpu; default cuda if available")
    add("--peak-tflops", **positive, help="for MFU; default by the GPU's name")
    add("--timeout-s", **positive, default=1800.0, help="of one bucket; default %(default)g")
    add("--json", action="store_true", help="one document on stdout")
    add = parser.add_argument_group("search").add_argument
    add("--search-batch-size", action="store_true", help="the largest batch of each bucket")
    add("--budget-s", **positive, help="seconds of a step")
    add("--budget-mb", **positive, help="peak memory, 10^6 bytes")
    add("--most", **count, default=4096, help=f"largest batch size to try; {own}")
    return parser


def _paths(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PATHS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(PATHS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
