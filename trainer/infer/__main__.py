"""Videos from prompts and a checkpoint: `python -m trainer.infer CONFIG --ckpt-path PATH`."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.arguments import above_0, finite, whole
from trainer.config import load as configuration
from trainer.config.load import Config
from trainer.environment import INTERRUPTED, command
from trainer.errors import ConfigError
from trainer.runlog.json_file import read_object
from trainer.runlog.output import LOG, add_log_level, configure

CONFIG_FILE = "config.json"  # of a run directory
_DESCRIPTION = """\
Videos from prompts and a checkpoint: sample_0000.mp4 (or .png of one frame) in the order of the
prompts, and contact_sheet.png. Under torchrun every rank makes its share of them. A file that is
finished is not made again; the same seed gives the same videos on any number of ranks.

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
  torchrun --nproc_per_node 8 -m trainer.infer outputs/002-STDiT3 --prompt-path prompts.txt"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args, overrides = parser.parse_known_args(argv)
    configure(args.log_level)
    try:
        return _run(args, overrides)
    except KeyboardInterrupt:
        LOG.error("interrupted; finished videos stay and are not made again")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.infer",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("config", help="config file, its short name, a run's config.json, or a run directory")
    add(
        "--ckpt-path",
        metavar="PATH",
        help="checkpoint, run directory (its newest checkpoint), file or folder of weights, or a "
        "hub id; default the run directory, else model.from_pretrained",
    )
    add(
        "--weights",
        choices=("ema", "model"),
        default="ema",
        help="default ema if the checkpoint has it",
    )
    add(
        "--allow-partial",
        action="store_true",
        help="accept weights that cover less than 99 %% of the model",
    )
    add("--save-dir", type=Path, default=Path("samples"), metavar="DIR", help="default samples")
    add("--dry-run", action="store_true", help="print what would be made, make nothing")
    add("--overwrite", action="store_true", help="replace other videos of the same names")

    add_log_level(parser)

    what = parser.add_argument_group("prompts").add_argument
    what("--prompt", action="append", metavar="TEXT", help="may be given several times")
    what("--prompt-path", type=Path, metavar="FILE", help="one a line; default sample.prompts")
    what("--start-index", type=whole(0), default=0, metavar="N", help="first prompt, from 0")
    what("--end-index", type=whole(0), metavar="N", help="the prompt to stop before")
    what("--num-sample", type=whole(1), metavar="N", help="videos of each prompt, all different")
    what("--negative-prompt", metavar="TEXT", help="replaces the empty text in guidance")
    what("--aes", type=finite, metavar="X", help="aesthetic score, appended to the prompts")
    what("--flow", type=finite, metavar="X", help="motion score, appended to the prompts")
    what("--camera-motion", metavar="TEXT", help="camera motion, appended to the prompts")
    what(
        "--clean-caption",
        action=argparse.BooleanOptionalAction,
        help="clean prompts as Open-Sora's inference does; default with a T5",
    )
    what("--sample-name", default="sample", metavar="NAME", help="start of the files' names")
    what("--prompt-as-path", action="store_true", help="files are named by their prompts")

    size = parser.add_argument_group("size and speed").add_argument
    size("--num-frames", type=_length, metavar="N", help="frames, or 2s 4s 8s 16s, or image")
    size("--resolution", metavar="NAME", help="144p 240p 360p 480p 720p ...")
    size("--aspect-ratio", metavar="H:W", help="with --resolution; default 9:16")
    size("--image-size", type=whole(1), nargs=2, metavar=("H", "W"), help="pixels, instead")
    size("--fps", type=above_0, metavar="X", help="given to the model and written into the file")
    size("--save-fps", type=above_0, metavar="X", help="written into the file instead")
    size("--frame-interval", type=whole(1), metavar="N", help="the file plays at fps / N")
    size("--upscale", type=whole(1), default=1, metavar="N", help="enlarge pixels N times")

    how = parser.add_argument_group("sampling").add_argument
    how("--num-sampling-steps", type=whole(1), metavar="N")
    how("--cfg-scale", type=finite, metavar="X", help="guidance; 1 is none and twice as fast")
    how("--seed", type=int, metavar="N")
    how(
        "--batch-size",
        type=whole(1),
        metavar="N",
        help="videos at once; does not change the result",
    )

    given = parser.add_argument_group("given frames").add_argument
    given(
        "--reference-path",
        action="append",
        metavar="A;B",
        help="images and videos, one option for all prompts or one a prompt",
    )
    given(
        "--mask-strategy",
        action="append",
        metavar="GROUPS",
        help="where they are placed; default the first frame of the video",
    )
    given("--loop", type=whole(1), metavar="N", help="clips joined, each continuing the last")
    given(
        "--condition-frame-length",
        type=whole(1),
        metavar="N",
        help="latent frames a clip takes over; 5 are 17 frames",
    )
    given(
        "--condition-frame-edit", type=finite, metavar="X", help="how much they may change, 0 to 1"
    )
    given("--align", type=whole(1), metavar="N", help="given frames start at multiples of N")
    return parser


def _length(text: str) -> int:
    from trainer.infer.request import parse_length

    try:
        return parse_length(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(args: argparse.Namespace, overrides: list[str]) -> int:
    began = time.monotonic()
    config, checkpoint = _config(args, overrides)
    # After the arguments: these import torch.
    from trainer.infer.plan import Options, Rank, prepare
    from trainer.infer.prompts import read_prompts
    from trainer.infer.run import carry_out
    from trainer.infer.sampling import counted
    from trainer.runlog.progress import StepProgress

    rank = Rank.from_environment()
    if rank.rank:  # its share goes like rank 0's
        configure(max(args.log_level, logging.WARNING))
    if args.prompt and args.prompt_path:
        raise ConfigError("give --prompt or --prompt-path, not both")
    prompts: Sequence[str] = args.prompt or ()
    if not prompts:
        path = args.prompt_path or config.sample.prompts
        if path is None:
            raise ConfigError("there are no prompts", hint="--prompt TEXT, or --prompt-path FILE")
        prompts = read_prompts(Path(path))
    options = Options(
        references=args.reference_path or (),
        strategies=args.mask_strategy or (),
        name=args.sample_name,
        named_by_prompt=args.prompt_as_path,
        start=args.start_index,
        end=args.end_index,
        ema=args.weights == "ema",
        clean=args.clean_caption,
        upscale=args.upscale,
        overwrite=args.overwrite,
        allow_partial=args.allow_partial,
        run_dir=_run_dir(args.config),
    )
    plan = prepare(config, checkpoint, prompts, args.save_dir, options)
    if args.dry_run:
        if rank.rank == 0:
            print(f"from       {plan.checkpoint} ({args.weights})")
            print(f"each       {plan.settings.describe()}")
            for job in plan.jobs:
                print(f"{plan.state(job).value:<10} {job.path}  {job.prompt.text}")
        return 0
    LOG.info(f"{counted(len(plan.jobs))}: {plan.settings.describe()}")
    with StepProgress("sampling", quiet=rank.rank != 0) as progress:
        made = carry_out(plan, rank, progress=progress)
    of_rank = f" by rank 0 of {rank.world}" if rank.world > 1 else ""
    LOG.info(f"{counted(len(made))} in {time.monotonic() - began:.1f} s{of_rank}")
    if rank.rank == 0:
        print(plan.save_dir)
    return 0


def _run_dir(name: str) -> Path | None:
    """The run that CONFIG names, by its directory or the config in it."""
    path = Path(name)
    run_dir = path.parent if path.name == CONFIG_FILE else path
    return run_dir if (run_dir / CONFIG_FILE).is_file() else None


def _config(args: argparse.Namespace, overrides: list[str]) -> tuple[Config, str]:
    """The config with the sampling flags laid over it, and where the weights are."""
    run_dir = _run_dir(args.config)
    config = _load(str(run_dir / CONFIG_FILE) if run_dir else args.config, overrides)
    checkpoint = args.ckpt_path or (str(run_dir) if run_dir else config.model.from_pretrained)
    if checkpoint is None:
        raise ConfigError("there are no weights", hint="--ckpt-path CHECKPOINT")
    names = [field.name for field in dataclasses.fields(config.sample)]
    flags = {name: getattr(args, name, None) for name in names}
    changes = {name: value for name, value in flags.items() if value is not None}
    if "image_size" in changes and "resolution" in changes:
        raise ConfigError("give --resolution or --image-size, not both")
    if "resolution" in changes or "aspect_ratio" in changes:
        changes["image_size"] = None  # the config's
    sample = dataclasses.replace(config.sample, **changes)
    return dataclasses.replace(config, sample=sample), checkpoint


def _load(name: str, overrides: list[str]) -> Config:
    if not name.endswith(".json"):
        return configuration.load(name, overrides)
    try:
        data = read_object(Path(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} is not a run's config: {error}") from None
    if overrides:
        raise ConfigError(f"a run's config.json takes no overrides, here {overrides[0]}")
    config = data.get("config", data)
    if not isinstance(config, dict):
        raise ConfigError(f"{name} is not a run's config: its config is not an object")
    try:
        return configuration.from_dict(config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}", hint=error.hint) from None


if __name__ == "__main__":
    sys.exit(main())
