"""`simulate`: how long ranks wait for each other, before a node is booked.

python -m trainer.data simulate manifest.csv stage2 --ranks 192
python -m trainer.data simulate openvid stage1 --ranks 192 --windows 1 8 16 64

The data may be a manifest or a stand-in: `openvid` (43 % 1080p, median 150 frames) or
`openvid+mira` (a quarter of it 720p clips with a median of 900 frames). Microbatches are priced by
arithmetic.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.command_line import above_0, whole
from trainer.config.load import Config, load
from trainer.data.manifest.left_out import report
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.balance import Balance, classes, idle
from trainer.data.plan.buckets import Bucket
from trainer.data.plan.data_plan import plan_for
from trainer.data.plan.state import DataStateError
from trainer.runlog import units

STAND_INS = ("openvid", "openvid+mira")
_WINDOWS = (1, 4, 8, 16, 64)
# Open-Sora's stage configs keep gradient checkpointing on; a step costs something besides its FLOP.
_FIXED_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one order of an epoch costs."""

    order: str
    idle_share: float  # of all rank time
    buckets_a_step: float  # distinct, mean
    steps: int
    hours: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("data", help=f"manifest (csv or parquet), or {' or '.join(STAND_INS)}")
    option("config", help="training config, a file or a short name")
    ranks = "ranks of a run (%(default)s)"
    option("--ranks", dest="world", type=whole(1), default=192, metavar="N", help=ranks)
    option("--world", dest="world", type=whole(1), default=192, help=argparse.SUPPRESS)  # before
    option("--windows", type=whole(), nargs="+", default=list(_WINDOWS), metavar="STEPS")
    each = "microbatches a rank and step"
    option("--accumulate", type=whole(1), nargs="*", default=[], metavar="N", help=each)
    option("--rows", type=whole(1), default=1_000_000, help="clips of a stand-in")
    option("--epoch", type=whole(), default=0)
    option("--peak-tflops", type=above_0, default=989, help="of a GPU; default H100, bf16")
    option("--cached", action="store_true", help="latents and text from a cache")
    option("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when rows would be left out of training."""
    config = load(args.config)
    if args.data in STAND_INS:
        manifest = stand_in(args.rows, mira=args.data == "openvid+mira")
    else:
        data = config.dataset
        manifest = read_manifest(Path(args.data), data.root, data.max_wrong_rows)
    report(manifest.wrong)
    orders, peak = (args.world, args.windows, args.accumulate), args.peak_tflops * 1e12
    found = simulate(manifest, config, *orders, args.epoch, peak, args.cached)
    if args.json:
        print(json.dumps([asdict(outcome) for outcome in found]))
    else:
        _print(args, len(manifest), found)
    return 1 if manifest.wrong else 0


def _print(args: argparse.Namespace, clips: int, found: Sequence[Outcome]) -> None:
    random = found[0]
    where = f"of {args.world} ranks in epoch {args.epoch}"
    print(f"{clips:,} clips, {random.steps:,} steps {where}")
    print(f"{'order':<13}{'idle':>8}{'buckets a step':>17}{'epoch':>14}{'faster':>9}")
    for outcome in found:
        print(
            f"{outcome.order:<13}{outcome.idle_share:>7.1%} {outcome.buckets_a_step:>16.1f}"
            f"{units.duration(3600 * outcome.hours):>14}{random.hours / outcome.hours:>8.2f}x"
        )
    print(
        "A wider window waits less; each step then holds fewer kinds of buckets. "
        "dataset.balance_window sets it.",
        file=sys.stderr,
    )


def simulate(
    manifest: Manifest,
    config: Config,
    ranks: int,
    windows: Sequence[int],
    accumulate: Sequence[int] = (),
    epoch: int = 0,
    peak: float = 989e12,
    cached: bool = False,
) -> list[Outcome]:
    """The random order first, then one outcome of each window, then two of each accumulation: as it
    comes, and shared out over the ranks by cost. `peak` is FLOP/s.

    Raises ConfigError for a window out of range, DataStateError when no step fits into the epoch.
    """
    plan = plan_for(config, manifest)
    cells = plan.epoch(epoch).cells
    if len(cells) < ranks:
        raise DataStateError(
            f"epoch {epoch} has {len(cells)} microbatches, {ranks} ranks need {ranks} for a step"
            + (f": {unplaced}" if (unplaced := plan.unplaced()) else ""),
            hint="--ranks N: as many ranks as the run will have (192 unless given)",
        )
    seconds = np.array(_costs(plan.buckets.cells, config, cached)) / peak
    known = classes(seconds.tolist())

    def outcome(name: str, window: int = 0, each: int = 1) -> Outcome:
        here = cells
        if window:
            balance = Balance(window, known, {0: (ranks, each)})
            here = cells[balance.order(cells, config.seed, epoch)]
        cost = idle(here, seconds[here], ranks, each)
        hours = (cost.time + cost.steps * _FIXED_S) / 3600
        busy = (1 - cost.share) * cost.time + cost.steps * _FIXED_S
        return Outcome(name, 1 - busy / (hours * 3600), cost.buckets_a_step, cost.steps, hours)

    found = [outcome("random"), *(outcome(f"window {window}", window) for window in windows)]
    for each in accumulate:
        if each * ranks <= len(cells):
            found.append(outcome(f"{each} a step", 0, each))
            found.append(outcome(f"{each} shared out", 1, each))
    return found


def _costs(cells: tuple[Bucket, ...], config: Config, cached: bool) -> list[float]:
    """Seconds of a 1 FLOP/s GPU for a microbatch of each bucket, by the parts a config names."""
    from trainer.data.plan import costs  # here: it needs torch
    from trainer.models.stdit_config import PRESETS, STDiT3Config

    model = STDiT3Config(**{**PRESETS[config.model.type], **config.model.options})
    in_pixels = config.vae.type == "identity"
    return [
        costs.peak_seconds(
            cell,
            model,
            functools.partial(costs.latent_size, config.vae.type),
            costs.no_flops if in_pixels or cached else costs.open_sora_vae_flops,
            0 if config.text_encoder.type == "tiny_t5" or cached else costs.T5_XXL,
            recompute=bool(config.grad_checkpoint),
        )
        for cell in cells
    ]


def stand_in(rows: int, *, mira: bool, seed: int = 0) -> Manifest:
    """Sizes and lengths like OpenVid-1M's, a quarter of them like MiraData's; no files."""
    draw: Any = np.random.default_rng(seed)
    sizes = np.array([(1080, 1920), (720, 1280), (512, 910)])
    size = sizes[draw.choice(3, rows, p=[0.43, 0.57 * 0.8, 0.57 * 0.2])]
    frames = np.clip(draw.lognormal(np.log(150), 0.6, rows), 30, 1500)
    if mira:
        long = draw.random(rows) < 0.25
        frames[long] = np.clip(draw.lognormal(np.log(900), 0.6, int(long.sum())), 60, 4000)
        size[long] = sizes[1]
    height, width = size.astype(np.int32).T
    rate = np.full(rows, 24, np.float32)
    texts = [""] * rows
    place = Path("stand-in"), Path()
    return Manifest(*place, texts, texts, frames.astype(np.int32), height, width, rate)
