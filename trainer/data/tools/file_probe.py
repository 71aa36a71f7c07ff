"""Ask about many files at once, each with a deadline: in processes here, or on a cluster's nodes.

`python -m trainer.data examine` is the node's side: questions as JSON lines on stdin, answers in
any order on stdout. `clusterctl data` starts it on every node and carries the lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from trainer.command_line import above_0, whole
from trainer.data.manifest.computed import AGAIN, NEVER, STORAGE
from trainer.data.manifest.left_out import RESUME
from trainer.data.manifest.row_check import path_fault
from trainer.data.video.decode import Decoder, DecoderBroken
from trainer.data.video.decoder_pool import DecoderPool, Try
from trainer.runlog.json_file import parse

Cells = list[str]
Ask = Callable[[list[Cells]], Callable[[], list[Cells]]]  # see compute
Question = dict[str, Any]
Answer = dict[str, Any]

NOT_THERE = "No such file or directory"
_MEMORY_BYTES = 1 << 40  # no limit but the machine's: a clip too large to train on is not damaged


class LocalPool(DecoderPool):
    """`workers` processes of this machine that read files."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        super().__init__(workers, timeout_s, "examine", memory_bytes=_MEMORY_BYTES)

    def ask(self, question: Question) -> Future[Answer]:
        """An outage of the storage is waited for."""

        def patiently(decoder: Decoder) -> Answer:
            path = question["path"]
            return self.until_read(decoder, path, lambda: decoder.ask(question), _judge)

        return self.submit(patiently)


def _judge(answer: Answer) -> Try:
    fails = bool(answer.get("storage_fails"))
    return Try(str(answer.get("error", "")), fails, str(answer.get("gone", "")))


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
            with answers:
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

    def close(self) -> None:
        """No question follows; the other side ends the answers."""
        with suppress(OSError):
            self._questions.close()


def _gone() -> DecoderBroken:
    return DecoderBroken(
        "no node is left that can read the files", hint=f"finished work is kept; {RESUME}"
    )


def add_pool_options(parser: argparse.ArgumentParser, clip_timeout_s: float) -> None:
    """Options of verbs that look into files."""
    parser.add_argument("--workers", type=whole(1), default=os.cpu_count() or 1, help="processes")
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
    pool: LocalPool | ElsewherePool
    if args.elsewhere:
        out, back, ahead = args.elsewhere
        pool = ElsewherePool(os.fdopen(out, "wb"), os.fdopen(back, "rb"))
    else:
        pool, ahead = LocalPool(args.workers, args.clip_timeout_s), max(256, 8 * args.workers)
    with closing(pool):
        yield pool, ahead


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
            fault = path_fault(path)
            asked.append(fault or pool.ask({"what": what, "path": located(folder, path)}))

        def wait() -> list[Cells]:
            found: list[Cells] = []
            for row, one in zip(rows, asked, strict=True):
                if isinstance(one, str):
                    found.append([*[""] * columns, NEVER, one])
                    continue
                answer = one.result()
                *cells, reason = cells_of(row, answer)
                found.append([*cells, _again(answer), reason])
            return found

        return wait

    return ask


def located(folder: Path, path: str) -> str:
    """Where a row's file is looked for."""
    return path if path[:1] == "/" else f"{folder}/{path}"


class SeveralVideos:
    """Files with more than one video stream: only the first of them is read; one note says so."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def see(self, path: str, answer: Answer) -> None:
        if answer.get("video_streams", 1) > 1:
            self.count, self.first = self.count + 1, self.first or path

    def notes(self) -> list[str]:
        if not self.count:
            return []
        has = "file has" if self.count == 1 else "files have"
        text = f"note: {self.count:,} {has} more than one video stream, such as {self.first}"
        return [f"{text}: the first is read, the others are not"]


def root_hint(args: argparse.Namespace, folder: Path) -> str:
    """What to say where files are not there."""
    if args.root:
        return f"; relative paths were looked for in --root {folder}"
    return f"; relative paths were looked for in {folder}: --root FOLDER names another"


def _again(answer: Answer) -> str:
    if answer.get("storage_fails") or answer.get("gone"):
        return STORAGE
    return AGAIN if answer.get("again") else NEVER


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
