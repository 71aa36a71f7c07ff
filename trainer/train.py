"""Start or resume a run, one rank of many or the only one: `python -m trainer.train CONFIG ...`."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer.runlog import units

if __package__ in (None, ""):  # run as a file, as `colossalai run` does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.path.remove(str(Path(__file__).resolve().parent))

from trainer.allocator import use_expandable_segments
from trainer.command_line import INTERRUPTED, Parser, is_reporter, missing_packages
from trainer.config import load as configuration
from trainer.config import sources
from trainer.config.description import describe
from trainer.engine.agreement import in_words, is_lost
from trainer.engine.process_group import ends_after
from trainer.errors import ConfigError, EngineError, TrainerError
from trainer.runlog.output import LOG, all_is_out, report_error
from trainer.runlog.run_dir import lock, make_run_dir
from trainer.runlog.telemetry import Heartbeat

if TYPE_CHECKING:
    from trainer.engine.base import Engine
    from trainer.guards.rollback import Back
    from trainer.step import Run

_EXAMPLES = """\
examples: python -m trainer.train demo --data-path digits/digits.csv
          torchrun --nproc_per_node 2 -m trainer.train demo --load outputs/001-STDiT3-demo"""
_LEAVE_S = 60.0  # for the end of a rank: workers, the tracker, the last writes
_ONE_KEYSTROKE_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    sources.imported()
    use_expandable_segments(os.environ)
    argv = list(sys.argv[1:] if argv is None else argv)
    options, overrides = parser().parse_known_args(argv)
    try:
        if options.allow_partial:
            overrides.append("--allow-partial")
        config = configuration.load(options.config, overrides)
        if options.resume_from is not None:
            config = _resumed(config, options)
        with missing_packages():
            return _train(config, options, argv)
    except TrainerError as error:
        return report_error(error) if is_reporter(error) else error.exit_code
    except Exception as error:  # noqa: BLE001 - rank boundary; the launcher shows it
        LOG.error("error: rank %s: %s", os.environ.get("RANK", "0"), in_words(error))
        return 1


def parser() -> Parser:
    description = (
        "Train. Every key of the config is an option, too: --lr 1e-4 --dataset.data-path X."
    )
    parser = Parser("train", description, epilog=_EXAMPLES, allow_abbrev=False)
    add = parser.add_argument
    add("config", help="config file, or a short name of trainer/configs")
    add("--run-dir", type=Path, help="default: the next free outputs/NNN-<model>")
    choices, what = ("fail", "reset", "force", "remap"), "when the data are not the checkpoint's"
    add("--data-state", choices=choices, default="fail", help=f"with --load, {what}")
    what = "continue from this checkpoint of the run directory, as clusterctl's restarts do"
    add("--resume-from", metavar="NAME", help=what)
    what = "start although less than 99 %% of the tensors are there"
    add("--allow-partial", action="store_true", help=f"with --ckpt-path, {what}")
    what = "check config, data and weights, say what would be done, and start nothing"
    add("--dry-run", action="store_true", help=what)
    return parser


def _resumed(config: configuration.Config, options: argparse.Namespace) -> configuration.Config:
    """What a config and options say of the beginning was for the first attempt of the run."""
    from trainer.resume import continued

    run_dir = _given_run_dir(options)
    if run_dir is None:
        raise ConfigError("--resume-from goes with --run-dir", hint="--load PATH loads any other")
    options.data_state = "fail"
    return continued(config, run_dir / options.resume_from)


def _train(config: configuration.Config, options: argparse.Namespace, argv: Sequence[str]) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if config.dataset.data_path is None:
        hint = "--data-path FILE.csv; make one with python -m trainer.data.digits"
        raise ConfigError("there is no dataset", hint=hint)
    from trainer.data.loader.dry_run import would_do
    from trainer.data.loader.loader import require_below
    from trainer.device import be_deterministic
    from trainer.diffusion.frame_masks import build_masks
    from trainer.engine.base import build_engine

    # Mistakes in these are reported before anything is made.
    build_masks(config.mask_ratios)
    require_below(config.dataset, config.process_group_timeout_s)
    if options.dry_run:
        if int(os.environ.get("RANK") or "0") == 0:
            _check_files(config)
            for line in would_do(config):
                print(line)
        return 0
    heartbeat = Heartbeat.from_environment(int(os.environ.get("RANK", "0")))
    if heartbeat:
        heartbeat.beat("start", 0)
    if config.deterministic:
        be_deterministic()
    engine = build_engine(config.engine)
    engine.setup(config.seed, config.process_group_timeout_s)
    with contextlib.ExitStack() as leaving, contextlib.ExitStack() as closing:
        closing.callback(engine.close)
        try:
            return _run(config, options, argv, engine, heartbeat, closing)
        except Exception as error:  # noqa: BLE001 - rank boundary
            ours = _of_rank(error)
            late = (
                f"{ours} (this rank could not end within {units.duration(_LEAVE_S)} and is ended)"
            )
            leaving.enter_context(ends_after(_LEAVE_S, EngineError(late)))
            raise ours from (None if ours is error else error)


def _of_rank(error: Exception) -> TrainerError:
    """The error of a rank that fails by itself, or because another one has ended."""
    if isinstance(error, TrainerError):
        return error
    rank = f"rank {os.environ.get('RANK', '0')}"
    if is_lost(error):
        text = f"{rank}: another rank has ended, and this one ends with it"
        return EngineError(text, hint="the error of that rank says why")
    ours = in_words(error)
    ours.args = (f"{rank}: {ours}",)
    return ours


def _run(
    config: configuration.Config,
    options: argparse.Namespace,
    argv: Sequence[str],
    engine: Engine,
    heartbeat: Heartbeat | None,
    closing: contextlib.ExitStack,
) -> int:
    """From the run directory to the last step; what must be closed after it goes to `closing`."""
    from trainer.components import fetch
    from trainer.engine.alike import require_alike
    from trainer.engine.long_work import together_long
    from trainer.resume import continued

    def lock_run_dir() -> str:
        release, note = lock(run_dir)
        closing.callback(release)
        return note

    require_alike(engine, config)
    parts = engine.run_long_on_rank0(lambda lives: _check_files(config, lives))
    if parts and engine.world > 1:
        # A node may have a cache of its own: one rank of it asks, once rank 0 has what there is.
        asks = engine.rank and int(os.environ.get("LOCAL_RANK") or "0") == 0
        together_long(engine, lambda lives: fetch(parts if asks else (), lives))
    run_dir = engine.run_on_rank0(lambda: _run_dir(config, options))
    unlocked = engine.run_on_rank0(lock_run_dir)
    notes = engine.run_on_rank0(lambda: describe(config, run_dir, argv))
    if unlocked:
        notes.append(f"a second run in this directory would not be noticed: {unlocked}")
    stop, back = Stopper(), None
    while True:
        attempt = closing.enter_context(contextlib.ExitStack())
        given = (config, engine, run_dir, heartbeat, options.data_state)
        code, back = _attempt(given, back, notes, stop, attempt)
        if back is None:
            return code
        attempt.close()
        config = continued(config, back.source)
        engine.release()
        gc.collect()  # the model of before, its state and what a save has held


def _attempt(
    given: tuple[configuration.Config, Engine, Path, Heartbeat | None, str],
    back: Back | None,
    notes: Sequence[str],
    stop: Stopper,
    closing: contextlib.ExitStack,
) -> tuple[int, Back | None]:
    """Train from the present checkpoint on: the exit code, or how the run must go back."""
    from trainer.build_run import assemble
    from trainer.device import name_of
    from trainer.guards.rollback import RollBack, choose
    from trainer.loop import save, train
    from trainer.weights.checkpoints import complete

    def record_failure(_kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            journal.event("failed", str(error), step=run.step)

    run = assemble(*given, back)
    _, engine, run_dir, *_ = given
    journal = run.journal
    closing.callback(journal.close)
    closing.callback(run.loader.close)
    closing.push(record_failure)
    for note in notes:
        journal.event("note", note)

    stop.attach(run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    began, first = time.monotonic(), run.step
    about = {"world": engine.world, "device": name_of(engine.device)}  # for the MFU
    if not engine.rank:  # a pass over all rows
        about["dataset"] = run.plan.manifest.fingerprint
    journal.begin(first, **about)
    try:
        if back is not None:  # a later resume must not repeat what led here
            save(run, background=False)
        finished = train(run)
    except RollBack as error:
        asked, place = error, run.loader.cursor
        back = engine.run_on_rank0(lambda: choose(asked, complete(run_dir), place))
        data = {"checkpoint": str(back.source), "rollbacks": back.tries}
        journal.event("rollback", back.text, step=run.step, **data)
        stop.attach(None)
        return 0, back
    outcome = "done" if finished else "stopped"
    took = f"after {units.duration(time.monotonic() - began)}"
    if run.step == first:
        took = "as before: max_steps or epochs were reached, nothing was left to train"
    journal.event(outcome, f"{outcome} at step {run.step} {took}", step=run.step)
    return 0 if finished else INTERRUPTED, None


def _check_files(
    config: configuration.Config, lives: Callable[[], None] = lambda: None
) -> list[tuple[str, list[str]]]:
    """Refuse missing data and unusable weights before a run directory is made. What is on the hub
    is fetched, and returned; `lives()` says that it goes on."""
    data = config.dataset.data_path
    if data is not None and not Path(data).exists():
        raise ConfigError(f"there is no {data} for dataset.data_path")
    if config.load is not None:
        from trainer.weights.checkpoints import find

        find(Path(config.load))
    from trainer.components import check_encoders, check_model, fetch, hub_parts

    check_model(config)
    parts = hub_parts(config)
    fetch(parts, lives)
    if config.load is None and config.model.from_pretrained is not None:
        from trainer.weights.source import find_source

        find_source(config.model.from_pretrained).read(shapes_only=True)
    if config.dataset.features is None:
        check_encoders(config)
    return parts


def _run_dir(config: configuration.Config, options: argparse.Namespace) -> Path:
    """Made by rank 0, unless the launcher or the user has made it."""
    path = _given_run_dir(options)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        return path
    outputs = Path(config.outputs).absolute()
    outputs.mkdir(parents=True, exist_ok=True)
    return make_run_dir(outputs, config.model.type.replace("/", "-"))


def _given_run_dir(options: argparse.Namespace) -> Path | None:
    given = options.run_dir or os.environ.get("CLUSTERCTL_RUN_DIR")
    return Path(given).absolute() if given else None


def threads_end(limit_s: float) -> bool:
    """Wait for threads that the interpreter joins at its end; False when they still run."""
    until = time.monotonic() + limit_s
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return False
    return True


def _exit(code: int) -> NoReturn:
    """At its end a run waits neither for a tracker nor for a filesystem that hangs."""
    from trainer.trackers.tracker import is_stuck

    if is_stuck() or not threads_end(_LEAVE_S) or not all_is_out():
        os._exit(code)
    sys.exit(code)


class Stopper:
    """Handles SIGTERM and SIGINT: all ranks agree at the end of the step, then save."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._asked_s: list[float] = []

    def attach(self, run: Run | None) -> None:
        """From now on this run is stopped; at once if that was asked while there was none."""
        self._run = run
        if run is not None and self._asked_s:
            run.stop_requested = True

    def __call__(self, number: int, _frame: object) -> None:
        self._asked_s.append(time.monotonic())
        if self._run is not None:
            self._run.stop_requested = True
        # Ctrl-C again ends the process at once. torchrun passes the first one on a second time.
        if number == signal.SIGINT and self._asked_s[-1] - self._asked_s[0] > _ONE_KEYSTROKE_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


if __name__ == "__main__":
    _exit(main())
