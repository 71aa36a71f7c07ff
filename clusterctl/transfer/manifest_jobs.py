"""`clusterctl data`: the manifest verbs that look into every file, spread over the nodes.

The table stays here: `python -m trainer.data VERB --elsewhere` reads and writes it, resumes and
keeps the order, and asks its questions through two pipes. Nodes answer them (payload/examine.py);
this file carries them, sees nodes go, and hands their questions to others.
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

from clusterctl.nodes import Node
from clusterctl.remote.session_pool import Inbox, NodeMessage, SessionPool
from clusterctl.transfer.work_queue import WorkQueue
from clusterctl.transport.base import Limits, Transport

SILENT_S = 30.0  # a node sends a sign of life every 2 s
SLEPT_S = 3.0  # between two looks: longer only when this program did not run
PER_PROCESS = 4  # questions for each process of a node: hides the way there and back
AHEAD = 512  # questions under way for each node: 128 processes of it
HOME = str(Path(__file__).resolve().parents[2])
END_S = 120.0  # for the table's process to write its last piece

Outgoing = queue.SimpleQueue[list[dict[str, Any]] | None]


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

    @property
    def exit_code(self) -> int:
        """The command's: 3 when no node could look, or one was lost and nothing else is wrong."""
        if len(self.lost) == len(self.answered):
            return 3
        return self.code or (3 if self.lost else 0)


class Spread:
    """One run of a verb over nodes."""

    def __init__(
        self, job: Job, nodes: Sequence[Node], transport: Transport, limits: Limits
    ) -> None:
        self._job, self._nodes, self._limits = job, nodes, limits
        self._inbox = Inbox(["", *(node.name for node in nodes)])  # "": the table
        args = {
            "python": job.python,
            "home": HOME,
            "workers": job.workers,
            "clip_timeout_s": job.clip_timeout_s,
        }
        self._pool = SessionPool(
            nodes,
            transport,
            limits,
            len(nodes),
            verb="examine",
            args=lambda node: args,
            start_timeout_s=limits.command_s,
            inbox=self._inbox,
        )
        self._questions: dict[str, Outgoing] = {node.name: queue.SimpleQueue() for node in nodes}
        self._work = WorkQueue(node.name for node in nodes)
        self._lost: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._moved: dict[str, float] = {}  # node -> when it last answered, or had nothing to do

    def run(self, note: Callable[[str], None]) -> Outcome:
        """Blocks until the verb has ended; `note` gets a sentence when a node is lost."""
        threading.Thread(target=self._connect, name="data", daemon=True).start()
        for name in self._questions:
            self._heard[name] = time.monotonic() + self._limits.total_s + 120
            threading.Thread(target=self._send, args=(name,), name=name, daemon=True).start()
        table = Table(self._job, AHEAD * len(self._nodes), self._inbox)
        try:
            self._carry(table, note)
            code = table.wait()
        finally:
            self._inbox.close()
            table.close()
            for questions in self._questions.values():
                questions.put(None)
            self._pool.close()
        return self._outcome(code, table.out)

    def _connect(self) -> None:
        for result in self._pool.open():
            if (why := result.unreachable) is not None:
                name = result.node.name
                self._inbox.put(NodeMessage(name, None, f"{why.phase}: {why.message}"))

    def _send(self, name: str) -> None:
        """In a thread of the node's own: a write to a node that hangs holds up no other."""
        while (questions := self._questions[name].get()) is not None:
            self._pool.send(name, {"op": "ask", "questions": questions})

    def _carry(self, table: Table, note: Callable[[str], None]) -> None:
        looked = time.monotonic()
        while True:
            arrived, _ = self._inbox.take(1.0)
            now = time.monotonic()
            if now - looked > SLEPT_S:
                # This program was stopped (Ctrl-Z, a laptop's lid), not the nodes.
                self._heard = {name: until + now - looked for name, until in self._heard.items()}
                self._moved = {name: at_s + now - looked for name, at_s in self._moved.items()}
            looked = now
            for message in arrived:
                node, data = message.node, message.data
                if not node:
                    if data is None:
                        return
                    self._work.add(data)
                elif data is None:
                    self._lose(node, message.why, note)
                elif node not in self._lost:
                    self._heard[node] = now + SILENT_S
                    self._take(node, data, table, note)
            for name in [name for name, until in self._heard.items() if until < now]:
                self._lose(name, f"nothing heard of it for {SILENT_S:g} s", note)
            for name in self._stuck(now):
                self._lose(
                    name, f"it is alive, but has answered nothing for {self._patience_s:g} s", note
                )
            for name in self._work.unsound():
                first = self._work.workers[name].mistakes[0]
                self._lose(name, f"it cannot read files that other nodes can ({first})", note)
            table.answer(self._work.final_results())
            for name, questions in self._work.assign():
                self._questions[name].put(questions)
            if len(self._lost) == len(self._nodes):
                table.no_more()  # it keeps what is done and says so
                return

    def _stuck(self, now: float) -> list[str]:
        """Nodes whose processes should have answered by now: each clip has its own limit there."""
        stuck = []
        for name, worker in self._work.workers.items():
            if not worker.open:
                self._moved[name] = now
            elif now - self._moved.setdefault(name, now) > self._patience_s:
                stuck.append(name)
        return stuck

    @property
    def _patience_s(self) -> float:
        return PER_PROCESS * self._job.clip_timeout_s + SILENT_S

    def _take(
        self, node: str, data: dict[str, Any], table: Table, note: Callable[[str], None]
    ) -> None:
        if "ready" in data:
            self._work.join(node, PER_PROCESS * int(data["workers"]))
        elif "failed" in data:
            self._lose(node, data["failed"], note)
        for answer in data.get("answers", ()):
            self._moved[node] = time.monotonic()
            table.answer(self._work.answer(node, answer))

    def _lose(self, node: str, why: str, note: Callable[[str], None]) -> None:
        self._heard.pop(node, None)
        if node in self._lost:
            return
        self._lost[node] = why
        self._work.lose(node)
        self._questions[node].put(None)
        self._pool.drop(node)
        left = len(self._nodes) - len(self._lost)
        note(
            f"{node} is lost: {why}; its part goes to the other {left}"
            if left
            else f"{node}: {why}"
        )

    def _outcome(self, code: int, out: str) -> Outcome:
        every = {**self._work.gone, **self._work.workers}
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

    def __init__(self, job: Job, ahead: int, inbox: Inbox) -> None:
        questions_out, questions_in = os.pipe()
        answers_out, answers_in = os.pipe()
        path = os.pathsep.join(filter(None, [HOME, os.environ.get("PYTHONPATH")]))
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
        self._inbox = inbox
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._printed: list[bytes] = []
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
        return b"".join(self._printed).decode("utf-8", "backslashreplace")

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as file:
            for line in file:
                self._inbox.put(NodeMessage("", json.loads(line)))
        self._inbox.put(NodeMessage("", None))

    def _write(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while (data := self._answers.get()) is not None:
                try:
                    file.write(data)
                except OSError:
                    return  # it has ended

    def _hear(self, _: int) -> None:
        assert self._process.stdout is not None
        self._printed.extend(self._process.stdout)

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
        """End it if it still runs; the same command continues from what it has written."""
        self._answers.put(None)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
