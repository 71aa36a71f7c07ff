"""`convert` and `clean-captions`: the same rows in another form.

python -m trainer.data convert manifest.csv manifest.parquet
python -m trainer.data clean-captions manifest.csv clean.csv --workers 8
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

from trainer.arguments import whole
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.pipeline import Done, Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.rewrite import Rows, rewriting
from trainer.data.manifest.table_io import Batch
from trainer.data.tools.left_out import tell_left_out
from trainer.data.video import helper_process

CLEANERS = ("trainer.captions", "trainer.models.caption_cleaning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="manifest to write; its name says csv or parquet")
    if parser.prog.endswith("clean-captions"):
        parser.add_argument(
            "--workers", type=whole(1), default=os.cpu_count() or 1, help="processes"
        )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb == "convert":
        with rewriting(args.verb, [args.source], args.out, Options.of(args)) as made:
            made.write([Rows(made.add(args.source))])
        print(f"{args.out}: {made.rows:,} rows")
        tell_left_out(made.wrong)
        return made.exit_code
    done = _clean(args)
    empty = f", {done.state['empty']:,} are empty" if done.state.get("empty") else ""
    print(f"{done.out}: {done.rows:,} rows, {done.state['changed']:,} captions changed{empty}")
    tell_left_out(done.wrong)
    return done.exit_code


def cleaner() -> Callable[[str], str]:
    """The function that cleans a caption as training and inference see it."""
    for name in CLEANERS:
        parent = importlib.util.find_spec(name.rpartition(".")[0])
        if parent is not None and importlib.util.find_spec(name) is not None:
            found: Callable[[str], str] = importlib.import_module(name).clean_caption
            return found
    raise ManifestError(
        "this installation has no caption cleaning", hint="update the trainer package"
    )


def _begin_worker(parent: int) -> None:
    helper_process.begin(parent, "captions", (signal.SIGINT,))  # the pool ends us with SIGTERM


def clean_texts(texts: Sequence[Any]) -> list[str]:
    """Runs in a process of its own."""
    clean = cleaner()
    return [clean("" if text is None else text) for text in texts]


def _clean(args: argparse.Namespace) -> Done:
    cleaner()
    state: dict[str, Any] = {}

    def prepare(job: Any) -> None:
        nonlocal state
        state = job.state
        state.setdefault("changed", 0)
        state.setdefault("empty", 0)

    def give(batch: Batch, answer: AsyncResult[list[str]]) -> Result:
        texts = answer.get()
        before = batch.column("text")
        state["changed"] += sum(old != new for old, new in zip(before, texts, strict=True))
        state["empty"] += texts.count("")
        return batch.with_columns({"text": texts}), ()

    # spawn: a fork would copy pyarrow's threads' locks
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start unblocks the signals that are held below
    with helper_process.signals_held():
        workers = context.Pool(args.workers, _begin_worker, (os.getpid(),))
    with workers as pool:
        plan = Plan(
            "clean-captions",
            args.source,
            {},
            required=("text",),
            ask=lambda batch: pool.apply_async(clean_texts, (batch.column("text"),)),
            give=give,
            prepare=prepare,
            read_rows=1024,
            ahead=2048 * args.workers,
        )
        return run_plan(plan, args.out, Options.of(args))
