"""Step time, or the largest batch, of every bucket: `python -m trainer.bench CONFIG [options]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from trainer.environment import TRAINING, require

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)

from trainer.arguments import above_0, whole
from trainer.config import load as configuration
from trainer.errors import ConfigError, TrainerError
from trainer.runlog.output import LOG, add_log_level, configure, report_error
from trainer.runlog.progress import StepProgress

_INTERRUPTED = 130
_DESCRIPTION = """\
Training steps on random latents, bucket by bucket: seconds by phase (medians), tokens/s, TFLOP/s
and MFU of forward and backward pass (recomputation apart, as "again"), peak memory. Each bucket
runs in its own process. Any key of the config is an option too: --dtype fp32.

With --search-batch-size, the largest batch of each bucket within --budget-s and --budget-mb,
printed as a bucket_config."""
_EPILOG = """\
examples
  python -m trainer.bench demo --compare plain
  python -m trainer.bench stage1 --shards 192 --bucket 360p:102 --bucket 720p:51
  python -m trainer.bench stage1 --shards 192 --search-batch-size --budget-s 12 \\
      --budget-mb 120000"""


def main(argv: Sequence[str] | None = None) -> int:
    args, overrides = _parser().parse_known_args(argv)
    configure(args.log_level)
    try:
        return _run(args, overrides)
    except TrainerError as error:
        return report_error(error)
    except KeyboardInterrupt:
        LOG.error("interrupted")
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("config", help="config file or its short name")
    add("--bucket", action="append", metavar="NAME:FRAMES", help="only this one, e.g. 360p:102")
    add("--aspect-ratio", metavar="H:W", help="of the clips; default 9:16, or the nearest there is")
    add("--batch-size", type=whole(1), metavar="N", help="instead of the bucket's")
    add(
        "--compare",
        choices=("plain",),
        help="also run the model as Open-Sora 1.2 does: explicit "
        "fp32 softmax, modulation twice, every block checkpointed",
    )
    add(
        "--grad-checkpoint",
        metavar="WHAT",
        help="off, all, 'every 2', or memory for activations, '24 GB'; default as the config does",
    )
    add("--offload", action="store_true", help="kept activations wait in host memory")
    add("--compile", action="store_true", help="torch.compile of each block")
    add(
        "--masks",
        choices=("config", "on", "off"),
        default="config",
        help="give some frames, as training with mask_ratios does; default as the config does",
    )
    add("--text-tokens", type=whole(1), metavar="N", help="of each caption; default all")
    add(
        "--shards",
        type=whole(1),
        default=1,
        metavar="N",
        help="ranks that share the optimizer's state",
    )
    add("--warmup", type=whole(1), default=2, metavar="N", help="steps before the timed ones")
    add("--steps", type=whole(1), default=5, metavar="N", help="timed steps; their median counts")
    add("--device", help="cuda or cpu; default cuda if available")
    add("--peak-tflops", type=above_0, metavar="X", help="for MFU; default by the GPU's name")
    add("--timeout-s", type=above_0, default=1800.0, metavar="X", help="of one bucket")
    add("--json", action="store_true", help="one document on stdout")
    search = parser.add_argument_group("search").add_argument
    search("--search-batch-size", action="store_true", help="the largest batch of each bucket")
    search("--budget-s", type=above_0, metavar="X", help="seconds of a step")
    search("--budget-mb", type=above_0, metavar="X", help="peak memory, 10^6 bytes")
    search("--most", type=whole(1), default=4096, metavar="N", help="largest batch size to try")
    add_log_level(parser)
    return parser


def _run(args: argparse.Namespace, overrides: list[str]) -> int:
    config = configuration.load(args.config, overrides)
    from trainer.bench.shapes import shapes_of

    if args.grad_checkpoint:
        from trainer.models.checkpointing import GradCheckpoint

        GradCheckpoint.parse(args.grad_checkpoint)  # before a child would say it
    shapes = shapes_of(config, args.bucket or (), args.aspect_ratio)
    if not shapes:
        raise ConfigError("bucket_config has no bucket that takes clips")
    if (args.budget_s or args.budget_mb) and not args.search_batch_size:
        raise ConfigError("--budget-s and --budget-mb need --search-batch-size")
    device = _device(args.device)
    if args.search_batch_size:
        if args.compare:
            raise ConfigError("--compare cannot be used with --search-batch-size")
        if device == "cpu" and not (args.budget_s or args.budget_mb):
            raise ConfigError(
                "on a CPU the search needs a limit: --budget-s or --budget-mb",
                hint="without one it would fill this machine's memory",
            )
        return _search(args, config, shapes, device)
    return _measure(args, config, shapes, device)


def _device(wanted: str | None) -> str:
    import torch

    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = wanted.split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"there is no device {wanted!r} here")
    return wanted


def _device_name(device: str) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name(device) if device != "cpu" else platform.processor() or "cpu"


def _spec(args: argparse.Namespace, config: Any, shape: Any, device: str) -> Any:
    """A trial of the bucket on our path, at the bucket's own batch size."""
    from trainer.bench.shapes import model_options
    from trainer.bench.trial import OURS, Spec
    from trainer.diffusion.rectified_flow import build_flow

    masked = bool(config.mask_ratios and any(config.mask_ratios.values()))
    length = config.text_encoder.model_max_length
    return Spec(
        kind=config.model.type,
        options=model_options(config),
        path=OURS,
        batch=args.batch_size or shape.batch_size,
        latent=shape.latent,
        frames=shape.frames,
        height=shape.height,
        width=shape.width,
        text_tokens=min(args.text_tokens or length, length),
        dtype=config.dtype,
        device=device,
        checkpointing=args.grad_checkpoint or config.grad_checkpoint,
        offload=args.offload or config.offload_activations,
        compile=args.compile or config.compile,
        positions=config.positions,
        masked=masked if args.masks == "config" else args.masks == "on",
        shards=args.shards,
        threads=config.threads,
        warmup=args.warmup,
        steps=args.steps,
        flow=build_flow(config.scheduler),
    )


def _patch(config: Any) -> Sequence[int]:
    from trainer.models.stdit_config import PRESETS, STDiT3Config

    chosen: dict[str, Any] = {**PRESETS.get(config.model.type, {}), **config.model.options}
    return chosen.get("patch_size", STDiT3Config().patch_size)


def _measure(args: argparse.Namespace, config: Any, shapes: Sequence[Any], device: str) -> int:
    from dataclasses import replace

    from trainer.bench.child import Kind, try_in_child
    from trainer.bench.report import Row, print_table
    from trainer.bench.trial import OURS, PLAIN

    peak, patch = _peak(args, config, device), _patch(config)
    paths = [OURS, PLAIN] if args.compare else [OURS]
    rows = []
    for number, shape in enumerate(shapes):
        for path in paths:
            spec = replace(_spec(args, config, shape, device), path=path)
            what = f"bucket {number + 1} of {len(shapes)}: {shape.name} x {spec.batch}, {path}"
            with _progress(what) as progress:
                outcome = try_in_child(spec, progress, timeout_s=args.timeout_s)
            rows.append(Row(shape, path, spec.batch, spec.batch * shape.tokens(patch), outcome))
    if args.json:
        print(json.dumps(_document(args, device, peak, rows=[row.to_json(peak) for row in rows])))
    else:
        print_table(rows, peak)
        print(_notes(device, peak, args.shards))
    return 0 if all(row.outcome.kind is Kind.MEASURED for row in rows) else 1


def _search(args: argparse.Namespace, config: Any, shapes: Sequence[Any], device: str) -> int:
    from dataclasses import replace

    from trainer.bench.child import Outcome, try_in_child
    from trainer.bench.search import Budget, SearchStopped, largest_batch
    from trainer.bench.shapes import as_bucket_config

    memory_bytes = int(args.budget_mb * 1e6) if args.budget_mb else None
    budget = Budget(args.budget_s, memory_bytes)
    found: dict[tuple[str, int], int] = {}
    lines = []
    for number, shape in enumerate(shapes):
        spec = replace(_spec(args, config, shape, device), enough_s=args.budget_s)

        def trial(
            batch: int, spec: Any = spec, number: int = number, shape: Any = shape
        ) -> Outcome:
            with _progress(
                f"bucket {number + 1} of {len(shapes)}: {shape.name} x {batch}"
            ) as shown:
                return try_in_child(replace(spec, batch=batch), shown, timeout_s=args.timeout_s)

        try:
            best = largest_batch(spec.batch, budget, trial, args.most)
        except SearchStopped as error:
            raise SearchStopped(
                f"{shape.name}: {error}",
                hint="memory is not the cause: fix it, or choose other buckets with --bucket",
            ) from None
        found[shape.resolution, shape.frames] = best.batch
        step_s = best.measured.step_s if best.measured else None
        peak_bytes = best.measured.peak_bytes if best.measured else None
        lines.append(
            {
                "bucket": shape.name,
                "batch_size": best.batch,
                "step_s": step_s,
                "peak_bytes": peak_bytes,
                "limit": best.limit,
                "trials": best.trials,
            }
        )
        LOG.info(
            f"{shape.name}: {best.batch}"
            + (f", {step_s:.3g} s, {(peak_bytes or 0) / 1e6:,.0f} MB" if step_s else "")
            + f"; one more: {best.limit} ({best.trials} trials)"
        )
    text = as_bucket_config(config, found)
    if args.json:
        document = _document(args, device, None, buckets=lines, bucket_config=text)
        print(json.dumps(document))
    else:
        print(text)
    return 0


def _peak(args: argparse.Namespace, config: Any, device: str) -> float | None:
    from trainer.runlog.gpu_peaks import peak_flops

    if args.peak_tflops:
        return args.peak_tflops * 1e12
    return None if device == "cpu" else peak_flops(_device_name(device), config.dtype)


def _document(
    args: argparse.Namespace, device: str, peak: float | None, **more: Any
) -> dict[str, Any]:
    import torch

    return {
        "schema": 1,
        "command": "bench",
        "config": args.config,
        "device": device,
        "device_name": _device_name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "peak_flops_per_s": peak,
        "shards": args.shards,
        **more,
    }


def _notes(device: str, peak: float | None, shards: int) -> str:
    name = _device_name(device)
    known = f"peak {peak / 1e12:g} TFLOP/s" if peak else "no peak known: --peak-tflops gives an MFU"
    share = f"; optimizer state of 1 of {shards} ranks" if shards > 1 else ""
    return (
        f"\n{name}, {known}{share}. again: recomputed in the backward pass, not in TFLOP/s or MFU."
    )


def _progress(what: str) -> StepProgress:
    """Of a trial; a log names it at once."""
    if not sys.stderr.isatty():
        LOG.info(what)
    return StepProgress(what)


if __name__ == "__main__":
    sys.exit(main())
