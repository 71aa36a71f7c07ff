"""`clusterctl data`: the manifest verbs that look into every file, spread over the nodes.

The table stays here: `python -m trainer.data VERB --elsewhere` reads and writes it, resumes and
keeps the order, and asks its questions through two pipes. Nodes answer them (payload/examine.py);
this file carries them, notices lost nodes, and gives their questions to others.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checks import units
from clusterctl.errors import CouldNotFindOut
from clusterctl.manifests.work_queue import Worker, WorkQueue
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.inbox import Inbox, NodeMessage
from clusterctl.remote.node_threads import start_thread
from clusterctl.remote.session_pool import SessionPool
from trainer.runlog.own_modules import HOME, environment, module_command

SILENT_S = 30.0  # a node sends a sign of life every 2 s
SLEPT_S = 3.0  # between two rounds: longer only when this program did not run
PER_PROCESS = 4  # questions for each process of a node: hides the round trip
AHEAD = 512  # questions under way for each node: 128 processes of it
END_S = 120.0  # for the table's process to write its last piece


@dataclass
class Job:
    """A verb with its arguments."""

    verb: str
    arguments: Sequence[str]  # of `python -m trainer.data VERB`
    python: str  # of the training environment, on the nodes
    workers: int
    clip_timeout_s: float


@dataclass
class Outcome:
    """The result of a run. `code` is the verb's own exit code."""

    code: int
    out: str
    answered: dict[str, int]  # of all nodes, in hostfile order
    lost: dict[str, str]  # node -> why
    mistakes: dict[str, list[str]]

    @property
    def exit_code(self) -> int:
        """The command's: 3 when no node could look, or one was lost and nothing else is wrong."""
        if len(self.lost) == len(self.answered):
            return 3
        return self.code or (3 if self.lost else 0)


class Spread:
    """One run of a verb over nodes."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self._job, self._limits = job, cluster.limits
        self._names = [node.name for node in cluster.nodes]
        self._inbox: Inbox[NodeMessage] = Inbox()
        args: dict[str, Any] = {"python": job.python, "home": HOME}
        args |= {"workers": job.workers, "clip_timeout_s": job.clip_timeout_s}
        self._pool = SessionPool(
            replace(cluster, width=len(self._names)),
            verb="examine",
            args=lambda node: args,
            start_timeout_s=self._limits.command_s,
            inbox=self._inbox,
        )
        self._questions = {name: queue.SimpleQueue[Any]() for name in self._names}
        self._work = WorkQueue(self._names)
        self._lost: dict[str, str] = {}
        self._heard: dict[str, float] = {}  # node -> when it is lost unless it sends something
        self._moved: dict[str, float] = {}  # node -> when it last answered, or had nothing to do
        self._patience_s = PER_PROCESS * job.clip_timeout_s + SILENT_S

    def run(self, note: Callable[[str], None]) -> Outcome:
        """Blocks until the verb has ended; `note` gets a sentence when a node is lost."""
        start_thread(self._connect)
        for name in self._names:
            self._heard[name] = time.monotonic() + self._limits.total_s + 120
            start_thread(self._send, name)
        table = Table(self._job, AHEAD * len(self._names), self._inbox)
        try:
            self._carry(table, note)
            code = table.wait()
        finally:
            self._inbox.close()
            table.close()
            for questions in self._questions.values():
                questions.put(None)
            self._pool.close()
        known = {**self._work.gone, **self._work.workers}
        every = {name: known.get(name, Worker(0)) for name in self._names}
        answered = {name: worker.answered for name, worker in every.items()}
        mistakes = {name: worker.mistakes for name, worker in every.items() if worker.mistakes}
        lost = {name: self._lost[name] for name in self._names if name in self._lost}
        return Outcome(code, table.out, answered, lost, mistakes)

    def _connect(self) -> None:
        for result in self._pool.open():
            if (why := result.unreachable) is not None:
                self._inbox.put(NodeMessage(result.node.name, None, f"{why.phase}: {why.message}"))

    def _send(self, name: str) -> None:
        """In a thread for each node: a write to a node that hangs delays no other."""
        while (questions := self._questions[name].get()) is not None:
            self._pool.send(name, {"op": "ask", "questions": questions})

    def _carry(self, table: Table, note: Callable[[str], None]) -> None:
        """Carry questions and answers until the table has ended or every node is lost."""
        last_s = time.monotonic()
        while True:
            arrived, _ = self._inbox.take(1.0)
            now = time.monotonic()
            if now - last_s > SLEPT_S:
                # This program was stopped (Ctrl-Z, a laptop's lid), not the nodes.
                for times in (self._heard, self._moved):
                    times.update({name: at_s + now - last_s for name, at_s in times.items()})
            last_s = now
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
                    table.answer(self._take(node, data, note))
            for name, until in list(self._heard.items()):
                if until < now:
                    self._lose(name, f"no message for {units.duration(SILENT_S)}", note)
            for name in self._stuck(now):
                why = (
                    f"it is alive, but has answered nothing for {units.duration(self._patience_s)}"
                )
                self._lose(name, why, note)
            for name in self._work.unsound():
                first = self._work.workers[name].mistakes[0]
                self._lose(name, f"it cannot read files that other nodes can ({first})", note)
            table.answer(self._work.final_results())
            for name, questions in self._work.assign():
                self._questions[name].put(questions)
            if len(self._lost) == len(self._names):
                table.no_more()  # it keeps what is done and reports that
                return

    def _stuck(self, now: float) -> list[str]:
        """Nodes whose processes should have answered by now: each clip has its own limit there."""
        workers = self._work.workers.items()
        self._moved |= {name: now for name, worker in workers if not worker.open}
        since = {name: self._moved.setdefault(name, now) for name, _ in workers}
        return [name for name, moved in since.items() if now - moved > self._patience_s]

    def _take(
        self, node: str, data: dict[str, Any], note: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Read a node's message; returns the answers that count."""
        if "ready" in data and node in self._work.workers:  # what it was asked would be forgotten
            self._lose(node, "it reported twice that it is ready", note)
        elif "ready" in data:
            self._work.join(node, PER_PROCESS * int(data["workers"]))
        elif "failed" in data:
            self._lose(node, data["failed"], note)
        answers = data.get("answers", ())
        if answers:
            self._moved[node] = time.monotonic()
        return [one for answer in answers for one in self._work.answer(node, answer)]

    def _lose(self, node: str, why: str, note: Callable[[str], None]) -> None:
        self._heard.pop(node, None)
        if node in self._lost:
            return
        self._lost[node] = why
        self._work.lose(node)
        self._questions[node].put(None)
        self._pool.drop(node)
        left = len(self._names) - len(self._lost)
        text = f"{node} is lost: {why}; its part goes to the other {left}"
        note(text if left else f"{node}: {why}")


class Table:
    """The process that reads and writes the manifest."""

    def __init__(self, job: Job, ahead: int, inbox: Inbox[NodeMessage]) -> None:
        questions_out, questions_in = os.pipe()
        answers_out, answers_in = os.pipe()
        command = module_command("trainer.data", job.verb, *job.arguments)
        command += ["--elsewhere", str(questions_in), str(answers_out), str(ahead)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[questions_in, answers_out],
                env=environment(OMP_NUM_THREADS="1"),
            )
        finally:
            os.close(questions_in)
            os.close(answers_out)
        self._inbox = inbox
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._printed: list[bytes] = []
        start_thread(self._read_questions, questions_out)
        start_thread(self._write_answers, answers_in)
        self._reader = start_thread(self._read_output)

    @property
    def out(self) -> str:
        """What it printed."""
        return b"".join(self._printed).decode("utf-8", "backslashreplace")

    def _read_questions(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as file:
            for line in file:
                self._inbox.put(NodeMessage("", json.loads(line)))
        self._inbox.put(NodeMessage("", None))

    def _write_answers(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while (data := self._answers.get()) is not None:
                try:
                    file.write(data)
                except OSError:
                    return  # it has ended

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        self._printed.extend(self._process.stdout)

    def answer(self, answers: Sequence[dict[str, Any]]) -> None:
        if answers:
            self._answers.put("".join(json.dumps(one) + "\n" for one in answers).encode())

    def no_more(self) -> None:
        """No node is left to ask."""
        self._answers.put(None)

    def wait(self) -> int:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            late = f"did not end in {units.duration(END_S)}"
            text = f"the program that reads and writes the manifest {late}"
            hint = "is its disk or mount hanging? The same command continues from what is written"
            raise CouldNotFindOut(text, hint=hint) from None
        self._reader.join(END_S)
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
