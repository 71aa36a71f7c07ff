"""`clusterctl data`: the manifest verbs that look into every file, spread over the nodes.

The table stays here: `python -m trainer.data VERB --elsewhere` reads and writes it, resumes and keeps the
order, and asks its questions through two pipes. Nodes answer them (payload/examine.py); this file carries
them, sees nodes go, and hands their questions to others.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.inbox import Inbox
from clusterctl.transfer.work_queue import Handout
from clusterctl.transport.base import Connection, Limits, Progress, Transport

SILENT_S = 30.0  # a node sends a sign of life every 2 s
SLEPT_S = 3.0  # between two looks: longer only when this program did not run
ROOM = 4  # questions for each process of a node: hides the way there and back
AHEAD = 512  # questions under way for each node: 128 processes of it
END_S = 120.0  # for the table's process to write its last piece

Event = tuple[str, str, Any]  # kind, node ("" for the table), what


@dataclass
class Job:
    """What to do and with what."""

    verb: str
    arguments: Sequence[str]  # of `python -m trainer.data VERB`
    python: str  # of the training environment, on the nodes
    workers: int
    clip_timeout_s: float


@dataclass
class Outcome:
    """How it went. `code` is the verb's own exit code."""

    code: int
    out: str
    answered: dict[str, int] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # node -> why, in hostfile order
    mistakes: dict[str, list[str]] = field(default_factory=dict)


class Spread:
    """One run of a verb over nodes."""

    def __init__(
        self, job: Job, nodes: Sequence[Node], transport: Transport, limits: Limits
    ) -> None:
        self._job, self._nodes, self._transport, self._limits = job, nodes, transport, limits
        self._events = Inbox[Event](["", *(node.name for node in nodes)])
        self._lines: dict[str, Line] = {}
        self._handout = Handout(node.name for node in nodes)
        self._lost: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._moved: dict[str, float] = {}  # node -> when it last answered, or had nothing to do

    def run(self, note: Callable[[str], None]) -> Outcome:
        """Blocks until the verb has ended; `note` gets a sentence when a node is lost."""
        for node in self._nodes:
            self._lines[node.name] = Line(
                self._job, node, self._transport, self._limits, self._events
            )
            self._heard[node.name] = time.monotonic() + self._limits.total_s + 120
        table = Table(self._job, ahead=AHEAD * len(self._nodes), events=self._events)
        try:
            self._carry(table, note)
            code = table.wait()
        finally:
            self._events.close()
            table.close()
            for line in self._lines.values():
                line.close()
        return self._outcome(code, table.out)

    def _carry(self, table: Table, note: Callable[[str], None]) -> None:
        looked = time.monotonic()
        while True:
            arrived, _ = self._events.take(1.0)
            now = time.monotonic()
            if now - looked > SLEPT_S:
                # This program was stopped (Ctrl-Z, a laptop's lid), not the nodes.
                self._heard = {name: until + now - looked for name, until in self._heard.items()}
                self._moved = {name: at_s + now - looked for name, at_s in self._moved.items()}
            looked = now
            for kind, node, what in arrived:
                if kind == "ended":
                    return
                if kind == "question":
                    self._handout.add(what)
                elif kind == "news" and node not in self._lost:
                    self._heard[node] = now + SILENT_S
                    self._news(node, what, table, note)
                elif kind == "lost":
                    self._lose(node, what, note)
            for name in [name for name, until in self._heard.items() if until < now]:
                self._lose(name, f"nothing heard of it for {SILENT_S:g} s", note)
            for name in self._stuck(now):
                self._lose(
                    name, f"it lives, and has answered nothing for {self._patience_s:g} s", note
                )
            for name in self._handout.unsound():
                first = self._handout.workers[name].mistakes[0]
                self._lose(name, f"it cannot read files that other nodes can ({first})", note)
            table.answer(self._handout.settled())
            for name, questions in self._handout.give():
                self._lines[name].ask(questions)
            if len(self._lost) == len(self._nodes):
                table.no_more()  # it keeps what is done and says so
                return

    def _stuck(self, now: float) -> list[str]:
        """Nodes whose processes should have answered by now: each clip has its own limit there."""
        stuck = []
        for name, worker in self._handout.workers.items():
            if not worker.open:
                self._moved[name] = now
            elif now - self._moved.setdefault(name, now) > self._patience_s:
                stuck.append(name)
        return stuck

    @property
    def _patience_s(self) -> float:
        return ROOM * self._job.clip_timeout_s + SILENT_S

    def _news(
        self, node: str, what: dict[str, Any], table: Table, note: Callable[[str], None]
    ) -> None:
        if "ready" in what:
            self._handout.join(node, ROOM * int(what["workers"]))
        elif "failed" in what:
            self._lose(node, what["failed"], note)
        for answer in what.get("answers", ()):
            self._moved[node] = time.monotonic()
            table.answer(self._handout.answer(node, answer))

    def _lose(self, node: str, why: str, note: Callable[[str], None]) -> None:
        self._heard.pop(node, None)
        if node in self._lost:
            return
        self._lost[node] = why
        self._handout.lose(node)
        threading.Thread(target=self._lines[node].close, daemon=True).start()
        left = len(self._nodes) - len(self._lost)
        note(
            f"{node} is lost: {why}; its part goes to the other {left}"
            if left
            else f"{node}: {why}"
        )

    def _outcome(self, code: int, out: str) -> Outcome:
        every = {**self._handout.gone, **self._handout.workers}
        names = [node.name for node in self._nodes]
        return Outcome(
            code,
            out,
            {name: every[name].answered if name in every else 0 for name in names},
            {name: self._lost[name] for name in names if name in self._lost},
            {
                name: every[name].mistakes
                for name in names
                if name in every and every[name].mistakes
            },
        )


class Table:
    """The process that reads and writes the manifest."""

    def __init__(self, job: Job, ahead: int, events: Inbox[Event]) -> None:
        questions_out, questions_in = os.pipe()
        answers_out, answers_in = os.pipe()
        home = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "trainer.data", job.verb, *job.arguments]
        command += ["--elsewhere", str(questions_in), str(answers_out), str(ahead)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[questions_in, answers_out],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        finally:
            os.close(questions_in)
            os.close(answers_out)
        self._events = events
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._said: list[bytes] = []
        self._threads = [
            threading.Thread(target=work, args=(descriptor,), daemon=True)
            for work, descriptor in (
                (self._listen, questions_out),
                (self._write, answers_in),
                (self._hear, -1),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def out(self) -> str:
        """What it printed."""
        return b"".join(self._said).decode("utf-8", "backslashreplace")

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as file:
            for line in file:
                self._events.put("", ("question", "", json.loads(line)))
        self._events.put("", ("ended", "", None))

    def _write(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while (data := self._answers.get()) is not None:
                try:
                    file.write(data)
                except OSError:
                    return  # it has ended

    def _hear(self, _: int) -> None:
        assert self._process.stdout is not None
        self._said.extend(self._process.stdout)

    def answer(self, answers: Sequence[dict[str, Any]]) -> None:
        if answers:
            self._answers.put("".join(json.dumps(one) + "\n" for one in answers).encode())

    def no_more(self) -> None:
        """Nobody is left to ask."""
        self._answers.put(None)

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait(END_S)
        self._threads[2].join(END_S)
        return code

    def close(self) -> None:
        """End it if it still runs; what it has written goes on with the same command."""
        self._answers.put(None)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Line:
    """The channel to one node, opened and served by threads of its own."""

    def __init__(
        self, job: Job, node: Node, transport: Transport, limits: Limits, events: Inbox[Event]
    ) -> None:
        self._job, self._node, self._transport, self._limits = job, node, transport, limits
        self._events = events
        self._questions: queue.SimpleQueue[list[dict[str, Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._connection: Connection | None = None
        threading.Thread(target=self._serve, name=f"data {node.name}", daemon=True).start()

    def ask(self, questions: list[dict[str, Any]]) -> None:
        self._questions.put(questions)

    def close(self) -> None:
        self._closed = True
        self._questions.put(None)
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        try:
            self._connection = self._transport.connect(self._node, self._limits, Progress())
            if self._closed:
                self._connection.close()
                return
            arguments = {
                "python": self._job.python,
                "home": str(Path(__file__).resolve().parents[2]),
                "workers": self._job.workers,
                "clip_timeout_s": self._job.clip_timeout_s,
            }
            with ship.stream(
                self._connection, "examine", arguments, start_timeout_s=self._limits.command_s
            ) as stream:
                threading.Thread(target=self._send, args=(stream,), daemon=True).start()
                while not self._closed:
                    message = stream.receive(1.0)
                    if message is not None:
                        self._events.put(self._node.name, ("news", self._node.name, message))
        except EOFError:
            self._say("its python has ended")
        except TransportError as error:
            self._say(f"{error.phase}: {error}")
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's end
            self._say(f"{type(error).__name__}: {error}")
        finally:
            if self._connection is not None:
                self._connection.close()

    def _say(self, why: str) -> None:
        if not self._closed:
            self._events.put(self._node.name, ("lost", self._node.name, why))

    def _send(self, stream: ship.PayloadStream) -> None:
        while (questions := self._questions.get()) is not None:
            try:
                stream.send({"op": "ask", "questions": questions})
            except TransportError:
                return  # the reader of this line sees it, too
