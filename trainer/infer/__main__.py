"""Videos from prompts and a checkpoint: `python -m trainer.infer CONFIG --ckpt-path PATH`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trainer.allocator import use_expandable_segments
from trainer.command_line import INTERRUPTED, Parser, above_0, command, finite, whole
from trainer.config import load as configuration
from trainer.config.load import RUN_CONFIG, Config
from trainer.errors import ConfigError
from trainer.infer.lengths import LENGTHS
from trainer.runlog import units
from trainer.runlog.output import LOG, configure
from trainer.runlog.run_files import is_elsewhere
from trainer.runlog.units import counted

_DESCRIPTION = """\
Videos from prompts and a checkpoint: sample_0000.mp4 (or .png of one frame) in the order of the
prompts, contact_sheet.png, and index.json, which says what they are. Under torchrun every rank
makes its share of them. A file that is finished is not made again; the same seed gives the same
videos on any number of ranks.

CONFIG is a config file, the short name of one (any key of it is an option too), or a run directory
(or its config.json), which then is the checkpoint as well."""
_EPILOG = """\
mask strategy
  Groups separated by ";" of up to six numbers: loop, reference, reference start, target start,
  length, edit ratio (default 0,0,0,0,1,0). Starts and lengths are latent frames, negative from the
  end; edit ratio 0 keeps them, 1 makes new ones. See docs/guide/sampling.md.

examples
  python -m trainer.infer outputs/002-STDiT3 --prompt 'handwritten digit three moving left'
  python -m trainer.infer stage3 --ckpt-path weights/ --prompt-path prompts.txt --num-frames 4s \\
      --resolution 360p --aspect-ratio 9:16 --aes 6.5
  python -m trainer.infer stage3 --ckpt-path weights/ --prompt 'waves' --num-frames 51 \\
      --resolution 240p --reference-path beach.png --mask-strategy 0 --loop 3
  torchrun --nproc_per_node 8 -m trainer.infer outputs/002-STDiT3 --prompt-path prompts.txt
  python -m trainer.infer outputs/002-STDiT3 --vbench VBench_full_info.json --save-dir vbench \\
      --dimensions temporal_flickering color"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    use_expandable_segments(os.environ)
    args, overrides = _parser().parse_known_args(argv, argparse.Namespace(run_dir=None))
    try:
        return _run(args, overrides)
    except KeyboardInterrupt:
        LOG.error("interrupted; finished videos stay and are not made again")
        return INTERRUPTED


def _parser() -> Parser:
    parser = Parser("infer", _DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    count: dict[str, Any] = {"type": whole(1), "metavar": "N"}
    number: dict[str, Any] = {"type": finite, "metavar": "X"}
    positive: dict[str, Any] = {"type": above_0, "metavar": "X"}
    add = parser.add_argument
    add("config", help="config file, its short name, a run's config.json, or a run directory")
    what = (
        "checkpoint, run directory (its newest checkpoint), file or folder of weights, or a hub id"
    )
    default = "default the run directory, else model.from_pretrained"
    add("--ckpt-path", metavar="PATH", help=f"{what}; {default}")
    what = "default ema if the checkpoint has it"
    add("--weights", choices=("ema", "model"), default="ema", help=what)
    what = "accept weights that cover less than 99 %% of the model"
    add("--allow-partial", action="store_true", help=what)
    add(
        "--save-dir",
        type=Path,
        metavar="DIR",
        help="default samples, of the run directory if CONFIG is one",
    )
    add("--dry-run", action="store_true", help="print what would be made, make nothing")
    add("--overwrite", action="store_true", help="replace other videos of the same names")

    add = parser.add_argument_group("prompts").add_argument
    add("--prompt", action="append", metavar="TEXT", help="may be given several times")
    add("--prompt-path", type=Path, metavar="FILE", help="one a line; default sample.prompts")
    add("--start-index", type=whole(0), default=0, metavar="N", help="first prompt, from 0")
    add("--end-index", type=whole(0), metavar="N", help="the prompt to stop before")
    add("--num-sample", **count, help="videos of each prompt, all different")
    add("--negative-prompt", metavar="TEXT", help="replaces the empty text in guidance")
    add("--aes", **number, help="aesthetic score, appended to the prompts")
    add("--flow", **number, help="motion score, appended to the prompts")
    add("--camera-motion", metavar="TEXT", help="camera motion, appended to the prompts")
    what = "clean prompts as Open-Sora's inference does; default with a T5"
    add("--clean-caption", action=argparse.BooleanOptionalAction, help=what)
    add("--sample-name", default="sample", metavar="NAME", help="start of the files' names")
    add("--prompt-as-path", action="store_true", help="files are named by their prompts")
    what = "VBench_full_info.json or VBench's prompt files: its names, 5 or 25 samples of each"
    add("--vbench", type=Path, metavar="FILE", help=what)
    add("--dimensions", nargs="+", default=[], metavar="NAME", help="of VBench; default all")
    what = "name of these settings, for index.json; changes nothing else"
    add("--preset-name", default="", metavar="NAME", help=what)

    add = parser.add_argument_group("size and speed").add_argument
    add("--num-frames", type=length, metavar="N", help="frames, or 2s 4s 8s 16s, or image")
    add("--resolution", metavar="NAME", help="144p 240p 360p 480p 720p ...")
    add("--aspect-ratio", metavar="H:W", help="with --resolution; default 9:16")
    add("--image-size", type=whole(1), nargs=2, metavar=("H", "W"), help="pixels, instead")
    add("--fps", **positive, help="given to the model and written into the file")
    add("--save-fps", **positive, help="written into the file instead")
    add("--frame-interval", **count, help="the file plays at fps / N")
    add("--upscale", **count, default=1, help="enlarge pixels N times")

    add = parser.add_argument_group("sampling").add_argument
    add("--num-sampling-steps", **count)
    add("--cfg-scale", **number, help="guidance; 1 is none and twice as fast")
    add("--seed", type=int, metavar="N")
    add("--batch-size", **count, help="videos at once; does not change the result")

    add = parser.add_argument_group("given frames").add_argument
    what = "images and videos, one option for all prompts or one a prompt"
    add("--reference-path", action="append", default=[], metavar="A;B", help=what)
    what = "where they are placed; default the first frame of the video"
    add("--mask-strategy", action="append", default=[], metavar="GROUPS", help=what)
    add("--loop", **count, help="clips joined, each continuing the last")
    what = "latent frames a clip takes over; 5 are 17 frames"
    add("--condition-frame-length", **count, help=what)
    add("--condition-frame-edit", **number, help="how much they may change, 0 to 1")
    add("--align", **count, help="given frames start at multiples of N")
    return parser


def length(text: str) -> int:
    """Frames of "51", "2s" or "4x", as a type of argparse."""
    if text not in LENGTHS and (not text.isdigit() or int(text) < 1):
        what = f"a number of frames, at least 1, or one of {', '.join(LENGTHS)}"
        raise argparse.ArgumentTypeError(f"{text!r} must be {what}")
    return LENGTHS.get(text) or int(text)


def _run(args: argparse.Namespace, overrides: list[str]) -> int:
    began = time.monotonic()
    if (found := configuration.find(args.config)).name == RUN_CONFIG:
        args.run_dir = found.parent
    if args.save_dir is None:
        is_run = Path(args.config).is_dir()
        args.save_dir = args.run_dir / "samples" if is_run else Path("samples")
        if is_run and args.save_dir.is_symlink():  # the run may be somebody else's
            raise ConfigError(f"{args.save_dir} is a link", hint="--save-dir names another place")
    config = _config(args, overrides)
    checkpoint = args.ckpt_path or args.run_dir or config.model.from_pretrained
    if checkpoint is None:
        raise ConfigError("there are no weights", hint="--ckpt-path CHECKPOINT")
    # After the arguments: these import torch.
    from trainer.engine.process_group import Rank
    from trainer.infer.prepare import Options, prepare
    from trainer.infer.prompts import read_prompts
    from trainer.infer.run import carry_out
    from trainer.runlog.progress import StepProgress

    rank = Rank.from_environment()
    if rank.rank:  # its share takes as long as rank 0's
        configure(max(args.log_level, logging.WARNING))
    if args.prompt and args.prompt_path:
        raise ConfigError("give --prompt or --prompt-path, not both")
    prompts = args.prompt
    if args.vbench:
        _refuse_beside_vbench(args)
    elif args.dimensions:
        raise ConfigError("--dimensions are those of --vbench", hint="--vbench FILE")
    elif not prompts:
        named = config.sample.prompts
        source = args.prompt_path or (None if named is None else Path(named))
        if source is None:
            raise ConfigError("there are no prompts", hint="--prompt TEXT, or --prompt-path FILE")
        if args.prompt_path is None and args.run_dir and is_elsewhere(source, args.run_dir):
            text = f"the config of {args.run_dir} takes its prompts from {source}"
            hint = f"--prompt-path {source} if that is meant"
            raise ConfigError(f"{text}, which is outside of it and of this folder", hint=hint)
        prompts = read_prompts(source)
    prompts = prompts or ()
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    plan = prepare(config, checkpoint, prompts, options)
    if args.dry_run:
        if rank.rank == 0:
            print(f"from       {plan.checkpoint} ({plan.weights})")
            print(f"each       {plan.settings.describe()}")
            for job in plan.jobs:
                print(f"{plan.state(job).value:<10} {job.path}  {job.prompt.text}")
        return 0
    LOG.info(f"{counted(len(plan.jobs), 'video')}: {plan.settings.describe()}")
    with StepProgress("sampling", quiet=rank.rank != 0) as progress:
        made = carry_out(plan, rank, progress)
    of_rank = f" by rank 0 of {rank.world}" if rank.world > 1 else ""
    LOG.info(
        f"{counted(len(made), 'video')} in {units.duration(time.monotonic() - began)}{of_rank}"
    )
    if rank.rank == 0:
        print(args.save_dir)
    return 0


def _refuse_beside_vbench(args: argparse.Namespace) -> None:
    """VBench has its own prompts, names and numbers of samples. Raises ConfigError."""
    others = ("prompt", "prompt_path", "num_sample", "prompt_as_path", "reference_path")
    for name in (*others, "mask_strategy"):
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"--vbench says which videos are made; leave out {flag}")


def _config(args: argparse.Namespace, overrides: list[str]) -> Config:
    """The config with the sampling flags laid over it."""
    config = configuration.load(args.config, overrides)
    flags = {field.name: getattr(args, field.name, None) for field in fields(config.sample)}
    changes = {name: value for name, value in flags.items() if value is not None}
    if "image_size" in changes and "resolution" in changes:
        raise ConfigError("give --resolution or --image-size, not both")
    if "resolution" in changes or "aspect_ratio" in changes:
        changes["image_size"] = None  # the config's
    return replace(config, sample=replace(config.sample, **changes))


if __name__ == "__main__":
    sys.exit(main())
