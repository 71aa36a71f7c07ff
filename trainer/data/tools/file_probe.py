"""Ask about many files at once, each with a deadline: in processes here, or on a cluster's nodes.

`python -m trainer.data examine` is the node's side: questions as JSON lines on stdin, answers in
any order on stdout. `clusterctl data` starts it on every node and carries the lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from trainer.command_line import above_0, whole
from trainer.data.manifest.left_out import RESUME
from trainer.data.manifest.row_check import path_fault
from trainer.data.video import helper_process
from trainer.errors import TrainerError
from trainer.runlog.json_file import parse

Cells = list[str]
Ask = Callable[[list[Cells]], Callable[[], list[Cells]]]  # see compute
Question = dict[str, Any]
Answer = dict[str, Any]

START_TIMEOUT_S = 120.0  # importing PyAV from a cold, loaded network drive
_ENDS_S = 2.0  # after SIGKILL; what still lives then sleeps in the kernel and is left behind


class ExamineBroken(TrainerError):
    """Files cannot be looked into at all (not one clip's fault); the text says why."""


class Examiner:
    """One examining process, started when first needed, replaced when it is late or dies."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._closed = False

    def ask(self, question: Question) -> Answer:
        """Raises ExamineBroken when the process cannot be started."""
        for _ in range(2):
            questions = self._started().stdin
            assert questions is not None
            try:
                questions.write(json.dumps(question).encode() + b"\n")
                break
            except OSError:  # it died while it had no question: no clip's fault
                self._end()
        else:
            raise ExamineBroken("the examining process dies as soon as it is started")
        if answer := self._line(self._timeout_s):
            return answer
        code = self._end()
        if answer is None:
            return {"error": f"no answer within {self._timeout_s:g} s", "late": True}
        ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return {"error": f"the examining process died of it: {ending}"}

    def close(self) -> None:
        """End the process, also from another thread and in the middle of a clip."""
        self._closed = True
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ExamineBroken("examining was ended")
        if self._process is not None:
            return self._process
        paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")]
        python_path = os.pathsep.join(filter(None, paths))
        with helper_process.signals_held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.data.tools.examiner", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
                bufsize=0,
            )
        self._text = b""
        process, ready = self._process, self._line(START_TIMEOUT_S)
        if not ready or "ready" not in ready:
            self._end()
            why = ready.get("failed", "it ended") if ready is not None else "it does not answer"
            raise ExamineBroken(
                f"the examining process does not start: {why}",
                hint="it needs PyAV, see docs/guide/install.md",
            )
        return process

    def _line(self, timeout_s: float) -> Answer | None:
        """The next answer; {} when the process has ended, None when none comes in time."""
        process = self._process
        if process is None or process.stdout is None:
            return {}
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            try:
                left_s = max(0.0, deadline - time.monotonic())
                if not select.select([process.stdout], [], [], left_s)[0]:
                    return None
                data = os.read(process.stdout.fileno(), 1 << 16)
            except (OSError, ValueError):  # closed by another thread
                data = b""
            if not data:
                return {}
            self._text += data
        text, self._text = self._text.split(b"\n", 1)
        return dict(json.loads(text))

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # in a dead mount: it goes when the kernel can
            process.wait(_ENDS_S)
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
        return process.returncode


class LocalPool:
    """`workers` examining processes of this machine."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._mine = threading.local()
        self._all: list[Examiner] = []
        self._threads = ThreadPoolExecutor(workers, "examine")

    def ask(self, question: Question) -> Future[Answer]:
        return self._threads.submit(self._answer, question)

    def _answer(self, question: Question) -> Answer:
        if not hasattr(self._mine, "examiner"):
            self._mine.examiner = Examiner(self._timeout_s)
            self._all.append(self._mine.examiner)
        return dict(self._mine.examiner.ask(question))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for examiner in self._all:
            examiner.close()
        self._threads.shutdown(wait=True)


class ElsewherePool:
    """Questions go out on one stream, answers come in on another; `clusterctl data` is behind."""

    def __init__(self, questions: IO[bytes], answers: IO[bytes]) -> None:
        self._questions = questions
        self._lock = threading.Lock()
        self._open: dict[int, Future[Answer]] | None = {}  # none: the other side has gone
        self._numbers = itertools.count()
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def ask(self, question: Question) -> Future[Answer]:
        future: Future[Answer] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._open is None:
                future.set_exception(_gone())
                return future
            self._open[number] = future
        with suppress(OSError):  # the other side has gone; the listener says so
            self._questions.write(json.dumps({"id": number, **question}).encode() + b"\n")
            self._questions.flush()
        return future

    def _listen(self, answers: IO[bytes]) -> None:
        assert self._open is not None
        try:
            for line in answers:
                answer = parse(line)
                with self._lock:
                    future = self._open.pop(answer.pop("id"), None)
                if future is not None:
                    future.set_result(answer)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # no valid answer: the other side counts as gone
        finally:  # nothing may wait for an answer that never comes
            with self._lock:
                left, self._open = self._open, None
            for future in left.values():
                future.set_exception(_gone())


def _gone() -> ExamineBroken:
    return ExamineBroken(
        "no node is left that can read the files", hint=f"finished work is kept; {RESUME}"
    )


def add_pool_options(parser: argparse.ArgumentParser, clip_timeout_s: float) -> None:
    """Options of verbs that look into files."""
    parser.add_argument("--workers", type=whole(1), default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--root", type=Path, help="folder that relative paths start from")
    parser.add_argument(
        "--clip-timeout-s",
        type=above_0,
        default=clip_timeout_s,
        metavar="S",
        help="seconds until a clip is given up and its process replaced (%(default)s)",
    )
    # For clusterctl data: descriptors for questions and answers, and how many to ask ahead.
    parser.add_argument("--elsewhere", type=int, nargs=3, help=argparse.SUPPRESS)


@contextmanager
def pool_of(args: argparse.Namespace) -> Iterator[tuple[LocalPool | ElsewherePool, int]]:
    """Who answers, and how many questions should be under way."""
    if args.elsewhere:
        out, back, ahead = args.elsewhere
        yield ElsewherePool(os.fdopen(out, "wb"), os.fdopen(back, "rb")), ahead
        return
    with closing(LocalPool(args.workers, args.clip_timeout_s)) as pool:
        yield pool, max(256, 8 * args.workers)


def asking(
    pool: LocalPool | ElsewherePool,
    what: str,
    folder: Path,
    columns: int,
    cells_of: Callable[[Cells, Answer], Cells],
) -> Ask:
    """Questions of `compute` about files; the first input is the path, from `folder` on.

    `cells_of` makes the `columns` new cells and the reason from the inputs and an answer.
    """

    def ask(rows: list[Cells]) -> Callable[[], list[Cells]]:
        asked: list[str | Future[Answer]] = []
        for path, *_ in rows:
            whole = path if path[:1] == "/" else f"{folder}/{path}"
            asked.append(path_fault(path) or pool.ask({"what": what, "path": whole}))

        def wait() -> list[Cells]:
            return [
                [*[""] * columns, one] if isinstance(one, str) else cells_of(row, one.result())
                for row, one in zip(rows, asked, strict=True)
            ]

        return wait

    return ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=whole(), default=0, help="processes; 0: one for each core"
    )
    parser.add_argument("--clip-timeout-s", type=above_0, default=30.0)


def run(args: argparse.Namespace) -> int:
    """Answer the questions on stdin until it ends."""
    workers = args.workers or len(os.sched_getaffinity(0))
    lock = threading.Lock()
    broken: list[BaseException] = []

    def write(message: Mapping[str, Any]) -> None:
        with lock:
            sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
            sys.stdout.buffer.flush()

    def answer(number: int, future: Future[Answer]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            broken.append(error)
            write({"failed": str(error)})
        else:
            write({"id": number, **future.result()})

    # A broken pipe: nobody listens any more.
    with closing(LocalPool(workers, args.clip_timeout_s)) as pool, suppress(BrokenPipeError):
        write({"ready": True, "workers": workers})
        for line in sys.stdin.buffer:
            question = json.loads(line)
            number = question.pop("id")
            pool.ask(question).add_done_callback(partial(answer, number))
            if broken:
                break
    return 1 if broken else 0
