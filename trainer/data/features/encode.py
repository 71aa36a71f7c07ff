"""`encode`: latents and captions, made once for all epochs.

python -m trainer.data encode stage1 features --data-path good.csv
torchrun --nproc-per-node 8 -m trainer.data encode stage1 features --data-path good.csv
python -m trainer.train stage1 --data-path good.csv --dataset.features features

CONFIG is the training config; every key of it is an option too (--vae.from-pretrained X). OUT is a
folder that all ranks see. Every clip is encoded at every size that a bucket may ask for, whole, so
that windows stay random. Killed at any moment the same command, on any number of ranks, goes on and
makes the same bytes; with more clips or other buckets it adds what is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from trainer.command_line import whole
from trainer.data.features.files import DOCUMENT, JOB, STORED, FeaturesError
from trainer.data.manifest.left_out import RESUME, report
from trainer.engine.process_group import Rank, joining
from trainer.errors import ConfigError

T = TypeVar("T")
OVERRIDES = True  # further words of the command line are keys of the config
_AGREE_S = 1800.0  # rank 0 reads all weights through meanwhile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("config", help="training config, a file or a short name")
    option("out", type=Path, help="folder of the cache, seen by all ranks")
    what = "keep one draw of each latent instead of mean and log-variance: half the bytes, no "
    option("--sample", action="store_true", help=what + "fresh noise in training")
    what = "of latents as stored (fp16; fp32 where pixels are the latents). Captions keep "
    option("--latent-dtype", choices=sorted(STORED), help=what + "the encoder's")
    what = "keep captions behind the frozen caption embedder of --ckpt-path: "
    what += "1,152 numbers a token instead of 4,096"
    option("--caption-embedder", action="store_true", help=what)
    what = "encode only the first N frames of a clip"
    option("--max-frames", type=whole(1), metavar="N", help=what)
    what = "size of a shard, which a kill costs at most for each rank (%(default)s)"
    option("--shard-mb", type=whole(1), default=128, metavar="MB", help=what)
    option("--workers", type=whole(), help="decoding processes a rank (num_workers)")
    what = "stop above this many clips that cannot be read (max_bad_samples)"
    option("--max-bad", type=whole(), metavar="N", help=what)
    option("--retry-bad", action="store_true", help="try those again that could not")
    option("--force", action="store_true", help="remove what OUT holds and start over")
    option("--dry-run", action="store_true", help="print what would be made; make nothing")
    option("-q", "--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when clips could not be read, or rows of the manifest had to be left out."""
    from trainer.config import load as configuration
    from trainer.data.features import encode_job as jobs
    from trainer.data.features.encode_plan import Options, foresee
    from trainer.data.manifest.read import read_manifest
    from trainer.data.manifest.shared import read_once

    config = configuration.load(args.config, args.overrides)
    if config.dataset.data_path is None:
        raise ConfigError("there is no dataset", hint="--data-path FILE.csv")
    if config.dataset.features is not None:
        raise ConfigError("dataset.features is what encode makes: leave it out here")
    is_exact = config.vae.type == "identity"
    if args.sample and is_exact:
        raise FeaturesError("--sample is for a VAE that has a spread; identity has none")
    ranks = _Ranks.from_environment("MASTER_ADDR", "MASTER_PORT")
    rank, world = ranks.rank, ranks.world
    root = Path(config.dataset.root) if config.dataset.root else None
    data = config.dataset
    source = (Path(config.dataset.data_path), root, data.memory_efficient, data.max_wrong_rows)
    options = Options(
        kind="exact" if is_exact else "sample" if args.sample else "posterior",
        dtype=STORED[args.latent_dtype or ("fp32" if is_exact else "fp16")],
        max_frames=args.max_frames,
        caption_embedder=args.caption_embedder,
        shard_bytes=args.shard_mb << 20,
        workers=args.workers if args.workers is not None else config.num_workers,
        max_bad=args.max_bad if args.max_bad is not None else config.max_bad_samples,
        retry_bad=args.retry_bad,
        force=args.force,
        quiet=args.quiet or rank > 0,
    )
    out = args.out.absolute()
    if args.dry_run:
        manifest = read_manifest(source[0], root, source[3], source[2])
        print(foresee(config, manifest, out, options))
        report(manifest.wrong)
        return 1 if manifest.wrong else 0
    with ranks.joined():
        manifest, notes = read_once(ranks, *source)
        document = ranks.run_on_rank0(lambda: jobs.prepare(config, manifest, out, options))
    if not rank:
        for note in notes:
            print(note, file=sys.stderr)
        report(manifest.wrong)
    if document is not None:
        if not (out / JOB).is_file() and not (out / DOCUMENT).is_file():
            raise FeaturesError(
                f"{out} of rank 0 is not seen by rank {rank}; a cache needs a folder that all see"
            )
        jobs.work(config, manifest, out, document, options, rank, world)
        if not jobs.finish(out, document):
            last = "the last rank finishes the cache"
            print(f"rank {rank} of {world}: done; {last}", file=sys.stderr)
            return 0
    elif rank:
        return 0
    return 1 if _describe(out) or manifest.wrong else 0


def _describe(out: Path) -> int:
    """Print what was made; returns how many times a clip could not be read."""
    from trainer.data.features.check import describe
    from trainer.data.features.index import read_document

    document = read_document(out)
    assert document is not None
    print(describe(out, document))
    print(f"train from it with --dataset.features {out}")
    if bad := document["bad"]:
        print(f"{len(bad):,} times a clip could not be read:", file=sys.stderr)
        for row in bad[:10]:
            size = f"{row['height']}x{row['width']}"
            print(f"  {row['path']} at {size}: {row['reason']}", file=sys.stderr)
        print("training takes others in their place; --retry-bad tries again", file=sys.stderr)
    return len(document["bad"])


class _Ranks(Rank):
    """The ranks of torchrun, or one alone."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """The ranks connected: at the start, and never again however long their shards take. Raises
        EngineError when a rank never comes, FeaturesError when one is gone."""
        if self.world == 1:
            yield
            return
        from datetime import timedelta

        import torch.distributed as dist

        with joining(_AGREE_S):
            dist.init_process_group("gloo", timeout=timedelta(seconds=_AGREE_S))
        try:
            yield
        except RuntimeError as error:  # gloo's
            first = str(error).strip().splitlines()[0]
            raise FeaturesError(
                f"rank {self.rank}: the ranks did not come together: {first}",
                hint=f"finished work is kept; {RESUME}",
            ) from None
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def gather_objects(self, value: Any) -> list[Any]:
        from trainer.engine.base import gathered

        return gathered(value, self.world)

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """See `Engine.run_on_rank0`."""
        if self.world == 1:
            return work()
        from trainer.engine.agreement import agreed, attempt

        value, failure = self.gather_objects(attempt(work) if self.rank == 0 else None)[0]
        if failure is not None:
            raise agreed(failure)
        return value
