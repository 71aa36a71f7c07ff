"""Each call that a rank makes fails once: do both ranks end?  `python -m tests.trainer.failing_calls --help`

A first run of two gloo ranks lists the calls of rank 1: from its setup to its end, each place in the
trainer's files that calls something of ours, of another library or of the system, and how often. Then each
is made to raise in a run of its own, the first time or the last. Nothing here is a list made by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tests.ports import free_port
from tests.trainer.ranks import REPO, TINY, environment, fork, train, wait

TRAINER = str(REPO / "trainer") + os.sep
# Guards: a trial takes 3 s, on a busy machine 30; ranks that wait for each other do so for 600.
LIMIT_S, ALONE_S = 300.0, 100.0  # of a trial; of a rank after the other has ended
CONFIG = TINY + "\nckpt_every = 2\nkeep_checkpoints = 1\nmax_steps = 6\nwarmup_steps = 1\n"


@dataclass(frozen=True)
class Trial:
    """The `nth` time that the call at `site` is made, an error of `kind` is raised."""

    site: str
    nth: int
    kind: str


@dataclass
class Counts:
    """Of trials, by how they ended."""

    sites: int = 0
    functions: int = 0
    trials: int = 0
    hung: list[str] = field(default_factory=list)
    broken: list[str] = field(
        default_factory=list
    )  # a checkpoint that is not what its manifest says
    tracebacks: list[str] = field(default_factory=list)  # of the rank that did nothing wrong
    alone: list[str] = field(default_factory=list)  # where only one rank failed
    ends: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0  # from the end of the first rank to that of the last


def _errors() -> dict[str, Exception]:
    from trainer.errors import TrainerError

    return {
        "TrainerError": TrainerError("planted"),
        "OSError": OSError(5, "planted"),
        "MemoryError": MemoryError("planted"),
    }


def _site(frame: FrameType, event: str, found: Any) -> str | None:
    """Where a call is made and to what; None for calls that nobody of ours makes and trivial ones."""
    if event == "call":
        back, code = frame.f_back, frame.f_code
        ours = code.co_filename.startswith(TRAINER)
        if back is None or not (ours or back.f_code.co_filename.startswith(TRAINER)):
            return None
        return (
            f"{_place(back)} -> {code.co_qualname if sys.version_info >= (3, 11) else code.co_name}"
        )
    if event == "c_call" and frame.f_code.co_filename.startswith(TRAINER):
        owner = getattr(found, "__self__", None)
        of_system = isinstance(owner, ModuleType) and owner.__name__ != "builtins"
        if of_system or type(owner).__module__.partition(".")[0] in ("torch", "_io", "numpy"):
            return f"{_place(frame)} -> {found.__qualname__}"
    return None


def _place(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    inside = path.startswith(TRAINER)
    if not inside:
        return "a library"
    return f"{path.removeprefix(TRAINER)} {frame.f_code.co_name}:{frame.f_lineno}"


class Watcher:
    """Counts the calls of this process by site; raises at the one it is told."""

    def __init__(self, trial: Trial | None) -> None:
        self.counts: Counter[str] = Counter()
        self.trial, self.was_raised, self._lock = trial, False, threading.Lock()

    def __call__(self, frame: FrameType, event: str, found: Any) -> None:
        if event not in ("call", "c_call"):
            return
        site = _site(frame, event, found)
        if site is None:
            return
        trial = self.trial
        with self._lock:
            self.counts[site] += 1
            if trial is None or self.was_raised or site != trial.site or self.counts[site] != trial.nth:  # fmt: skip
                return
            self.was_raised = True
        raise _errors()[trial.kind]

    def begin(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def one_rank(words: Sequence[str], trial: Trial | None, out: Path) -> None:
    """In a rank: a run, watched from the moment that its process group is there (rank 1)."""
    from unittest import mock

    from trainer import train as command
    from trainer.engine.base import build_engine

    watcher = Watcher(trial)

    def watched(name: str) -> Any:
        engine = build_engine(name)
        setup = engine.setup

        def setup_and_begin(*args: Any) -> None:
            setup(*args)
            watcher.begin()

        engine.setup = setup_and_begin  # type: ignore[method-assign]
        return engine

    try:
        with mock.patch("trainer.engine.base.build_engine", watched):
            if os.environ["RANK"] == "0":
                with mock.patch("trainer.engine.base.build_engine", build_engine):
                    code = command.main(list(words))
            else:
                code = command.main(list(words))
    finally:
        watcher.end()
        out.write_text(json.dumps({"raised": watcher.was_raised, "calls": watcher.counts}))
    command._exit(code)


class Campaign:
    """Trials in one folder with one engine."""

    def __init__(self, folder: Path, engine: str) -> None:
        from trainer.data.digits import main as render

        self.folder, self.engine = folder, engine
        (folder / "tiny.py").write_text(CONFIG)
        render(["--out", str(folder / "clips"), "--clips", "24", "--seed", "1"])
        first = folder / "first"
        (done,) = train([[*self.words(first), "--max-steps", "2"]], 2, folder / "p")
        assert [rank.code for rank in done] == [0, 0], done[0].err
        # One clip is bad from now on: what is agreed on about those is part of the run.
        sorted((folder / "clips" / "clips").iterdir())[3].write_bytes(b"")
        self.source = first / "epoch0-global_step2"

    def words(self, run_dir: Path) -> list[str]:
        data = str(self.folder / "clips" / "digits.csv")
        return [str(self.folder / "tiny.py"), "--data-path", data, "--run-dir", str(run_dir),
                "--engine", self.engine, "--dataset.balance-window", "0"]  # fmt: skip

    def run(self, name: str, trial: Trial | None) -> tuple[list[int | None], Path, float]:
        """Exit codes (None: it did not end), the folder of the run, seconds between the ends."""
        folder = self.folder / name
        folder.mkdir()
        words = [*self.words(folder / "run"), "--load", str(self.source)]
        port = free_port()
        processes = [
            fork(one_rank, words, trial, folder / f"{rank}.json", env=environment(rank, 2, port), log=folder / f"{rank}.log")
            for rank in range(2)
        ]  # fmt: skip
        deadline, ends = time.monotonic() + LIMIT_S, dict[int, float]()
        while len(ends) < 2 and time.monotonic() < deadline:
            for rank, process in enumerate(processes):
                process.join(0.02)
                if not process.is_alive() and rank not in ends:
                    ends[rank] = time.monotonic()
                    deadline = min(deadline, ends[rank] + ALONE_S)
        between = max(ends.values()) - min(ends.values()) if len(ends) == 2 else LIMIT_S
        return wait(processes, 0.1), folder, between

    def sites(self) -> dict[str, int]:
        """How often each call is made, in the order of the first time."""
        codes, folder, _ = self.run("listing", None)
        assert codes == [0, 0], (folder / "0.log").read_text() + (folder / "1.log").read_text()
        calls: dict[str, int] = json.loads((folder / "1.json").read_text())["calls"]
        return calls

    def judge(self, trial: Trial, counts: Counts, name: str) -> None:
        from trainer.checkpoint import files as checkpoint
        from trainer.errors import CheckpointError
        from trainer.weights import checkpoints

        codes, folder, between = self.run(name, trial)
        shown = f"{trial.site} ({trial.nth}. time, {trial.kind})"
        logs = [(folder / f"{rank}.log").read_text(errors="replace") for rank in range(2)]
        counts.trials += 1
        if None in codes:
            counts.hung.append(f"{shown}: exit codes {codes}")
            counts.ends["hung"] += 1
            return  # its folder stays
        counts.longest_s = max(counts.longest_s, between)
        raised = json.loads((folder / "1.json").read_text())["raised"] if (folder / "1.json").is_file() else True  # fmt: skip
        failed = [code not in (0, None) for code in codes]
        if not raised:
            end = "not reached"
        elif not any(failed):
            end = "went on to a good end"
        elif not all(failed):
            end = f"only rank {failed.index(True)} failed, after what both do"
            counts.alone.append(shown)
        elif "another rank has ended" in logs[0]:
            end = "rank 1 ended, rank 0 with it"
        else:
            end = "both ended with an agreed reason"
        counts.ends[end] += 1
        if "Traceback" in logs[0]:
            counts.tracebacks.append(f"{shown}\n{logs[0][-1500:]}")
        if (folder / "run").is_dir():
            for path in checkpoints.complete(folder / "run"):
                try:
                    checkpoint.verify(path)
                except CheckpointError as error:
                    counts.broken.append(f"{shown}: {error}")
        shutil.rmtree(folder)


def campaign(folder: Path, engine: str, count: int | None, seed: int) -> Counts:
    """`count` trials drawn from all, None: each site the first time and the last, the errors in turn."""
    work = Campaign(folder, engine)
    draw, sites = random.Random(seed), work.sites()
    moments = [(site, nth) for site, times in sites.items() for nth in sorted({1, times})]
    kinds = list(_errors())
    draw.shuffle(moments)
    # First of each function one call, then of each another one: a small campaign goes everywhere, too.
    turns: Counter[str] = Counter()
    order = []
    for site, _ in moments:
        function = site.partition(":")[0] if ":" in site else site
        order.append((turns[function], len(order)))
        turns[function] += 1
    moments = [moments[place] for _, place in sorted(order)]
    counts = Counts(sites=len(sites), functions=len(turns))
    for number, (site, nth) in enumerate(moments[:count]):
        work.judge(Trial(site, nth, kinds[number % 3]), counts, f"trial-{number}")
        if number % 25 == 24:
            print(f"{number + 1} of {len(moments[:count])}: {dict(counts.ends)}", file=sys.stderr, flush=True)  # fmt: skip
    return counts


def report(counts: Counts) -> str:
    line = (
        f"{counts.sites} calls in {counts.functions} functions, {counts.trials} trials: {dict(counts.ends)}; "
        f"hung {len(counts.hung)}, broken checkpoints {len(counts.broken)}, tracebacks of the other rank "
        f"{len(counts.tracebacks)}; at most {counts.longest_s:.1f} s between the ends"
    )
    return "\n".join([line, *counts.hung, *counts.broken, *counts.tracebacks, *counts.alone])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="colossal")
    parser.add_argument("--trials", type=int, help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    print(report(campaign(options.folder, options.engine, options.trials, options.seed)))
