"""Every command beside a hostile node: one line about it, the truth about the others, and no traceback.

Answers of real payloads are recorded once, then all nodes but one give them mangled, again and again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterctl import cli
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.settings import Settings
from clusterctl.transport.base import Limits, Progress
from tests.clusterctl.hostile.audit import nothing_done
from tests.clusterctl.hostile.campaign import TIMES, Cost
from tests.clusterctl.hostile.mangle import mangle
from tests.clusterctl.hostile.node import MARK, HostileStream, Orders, asked
from tests.clusterctl.jobs.trees import wait_until
from tests.clusterctl.payload.local import LocalConnection

RUN = "20260101-000000-hostile"
EVILS = 4  # nodes of each conversation: a command costs as much as the answers of some
TRAINER = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('up', flush=True)\ntime.sleep(600)\n"  # fmt: skip


def key_of(stdin: bytes) -> tuple[str, str]:
    verb, args = asked(stdin)
    return verb, str(args.get("op") or args.get("step") or sorted(set(args) - {"targets"}))


class Recorder(LocalConnection):
    """This machine; keeps what payloads say, by verb and what it was asked to do."""

    def __init__(self, said: dict[tuple[str, str], list[bytes]]) -> None:
        super().__init__()
        self._said = said

    def stream(self, command: str, stdin: bytes) -> Any:
        stream = super().stream(command, stdin)
        lines = self._said[key_of(stdin)] = []
        read = stream.read_line

        def read_line(timeout_s: float) -> bytes | None:
            line = read(timeout_s)
            if line and ship.MARKER.encode() not in line:
                lines.append(line + b"\n")
            return line

        stream.read_line = read_line
        return stream


@dataclass
class Told:
    """The node named `good` says what was recorded, the others mangle it."""

    said: dict[tuple[str, str], list[bytes]]
    seed: int = -1
    asked: Counter[str] = field(default_factory=Counter)

    def begin(self, seed: int) -> None:
        self.seed = seed
        self.asked.clear()

    def connect(self, node: Node, limits: Limits, progress: Progress) -> Telling:
        progress.enter("command")
        if node.name == "good":
            return Telling(self, None)
        self.asked[node.name] += 1  # each has numbers of its own: they speak in threads
        return Telling(self, random.Random(f"{self.seed} {node.name} {self.asked[node.name]}"))

    def lines(self, stdin: bytes, rng: random.Random | None, orders: Orders) -> Iterator[bytes]:
        """What a payload says, line by line; one that was asked for the time says it."""
        yield MARK
        for line in self.said[key_of(stdin)]:
            said = line
            if b'"time_s"' in line[:200] and b'"sections"' not in line and not orders.empty():
                # An answer to a question: with the number of the question, if it has one.
                number = json.loads(orders.get()).get("id")
                said = json.dumps({**json.loads(line), "id": number}).encode() + b"\n" if number else line  # fmt: skip
            if rng is not None:
                said = mangle(rng, said)
            yield said


class Telling:
    def __init__(self, told: Told, rng: random.Random | None) -> None:
        self._told, self._rng = told, rng

    def stream(self, command: str, stdin: bytes) -> HostileStream:
        import queue

        orders: Orders = queue.SimpleQueue()
        return HostileStream(self._told.lines(stdin, self._rng, orders), orders)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[None]:
    """A tagged process that stands for a run's rank."""
    program = tmp_path_factory.mktemp("job") / "train.py"
    program.write_text(TRAINER)
    env = {**os.environ, "CLUSTERCTL_RUN": RUN, "RANK": "0", "WORLD_SIZE": "1", "CLUSTERCTL_ROLE": "trainer"}  # fmt: skip
    process = subprocess.Popen([sys.executable, str(program)], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield
    process.kill()
    process.wait()


COMMANDS: dict[str, list[str]] = {
    "run": ["run", "echo hello"],
    "gpus": ["gpus", "--processes"],
    "fabric": ["fabric"],
    "env": ["env"],
    "clock": ["clock"],
    "preflight": ["preflight"],
    "dump-stacks": ["dump-stacks", "--run", RUN, "--interval", "0.1"],
    "stop": ["stop", "--run", RUN, "--yes"],
    "kill": ["kill", "--run", RUN, "--yes", "--grace", "1"],
}
# How the truth about the good node shows: of its JSON, what must not change whatever the other says.
TRUTH: dict[str, Callable[[dict[str, Any]], Any]] = {
    "run": lambda d: [n["out"] for n in d["nodes"] if n["node"] == "good"],
    "kill": lambda d: [(n["confirmed"], n["left"]) for n in d["nodes"] if n["node"] == "good"],
}


def invoke(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(words)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", COMMANDS)
def test_command_bears_a_hostile_node(name: str, times: int, job: None, tmp_path: Path, monkeypatch) -> None:  # fmt: skip
    said: dict[tuple[str, str], list[bytes]] = {}
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("good host=192.0.2.1\n")  # an address: no name is looked up
    words = [*COMMANDS[name], str(hostfile)]
    recorder = Recorder(said)
    monkeypatch.setattr(Settings, "transport", lambda _: Same(recorder))
    wait_until(lambda: invoke(words)[0] in (0, 1, 3) and all(said.values()))
    told = Told(said)
    monkeypatch.setattr(Settings, "transport", lambda _: told)
    _, alone, _ = invoke([*words, "--json"])
    truth = TRUTH[name](json.loads(alone)) if name in TRUTH else None
    evils = [f"evil-{n} host=192.0.2.{n}\n" for n in range(2, 2 + EVILS)]
    hostfile.write_text("".join([*evils, "good host=192.0.2.1\n"]))
    invoke(words)
    cost, number = Cost(name), 0
    codes: dict[int, int] = {}
    while cost.answers < times:
        told.begin(number)
        is_json = number % 2 == 0
        with cost.conversation(), nothing_done():
            code, out, err = invoke([*words, "--json"] if is_json else [*words, "-v"])
        codes[code] = codes.get(code, 0) + 1
        where = f"seed {number}: exit {code}\n{err[-3000:]}"
        assert code in (0, 1, 2, 3, 4), where
        assert "Traceback" not in err, where
        assert code != 0 or "not answer" not in err, where
        assert "fault of clusterctl" not in err + out, where
        shown = out + err
        assert not set(shown) & set("\x1b\x07\x00\x9b\u202e\ud800"), where
        if is_json and out:
            document = json.loads(out)
            if truth is not None and code != 2:
                assert TRUTH[name](document) == truth, where
        number += 1
    cost.say(f", exits {codes}")
    cost.check()


class Same:
    """A transport whose nodes are one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def connect(self, node: Node, limits: Limits, progress: Progress) -> Any:
        progress.enter("command")
        return self._connection
