"""Agents without ssh, whose pipes a test holds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.launch.session import agents_of
from clusterctl.remote import payload as ship
from tests.clusterctl.launch.harness import PYTHON, REPO, STARTER, wait_until

OLDEST = Path.home() / ".pyenv/versions/3.8.18/bin/python3.8"


class Agent:
    """An agent of a node `here`; another one with the same `run` is that of the next attempt."""

    def __init__(self, directory: Path, interpreter: str, /, **args: Any) -> None:
        self.run_dir = directory / "run"
        self.run_id = args.get("run", f"agent-{os.getpid()}-{time.monotonic_ns()}")
        self.args = {
            "run": self.run_id,
            "job": f"job-{self.run_id}",
            "word": "who-is-it",
            "port_word": "who-listens",
            "group": "",
            "node": "here",
            "run_dir": str(self.run_dir),
            "workdir": "/",
            "python": PYTHON,
            "device": "cpu",
            "address": "127.0.0.1",
            "ports": [29500],
            "attempt": 1,
            "first_rank": 0,
            "slots": 1,
            "grace_s": 2.0,
            "fail_grace_s": 0.5,
            "lease_s": 30.0,
            "resume": None,
            "head": "user@here, process 1",
            **args,
        }
        self.interpreter = interpreter
        self.connect()

    def connect(self, **more: Any) -> None:
        """As an ssh session does; `resume` is what a head that comes back has got."""
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", ship.command_line().replace("python3", self.interpreter, 1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.write(ship.request("agent", {**self.args, **more}))

    def disconnect(self) -> None:
        """As a lost connection: the program that ssh started is killed."""
        self.process.kill()
        self.process.wait(5)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    @property
    def pid(self) -> int:
        """Of the agent itself."""
        (pid,) = agents_of(self.run_id)
        return pid

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, **order: Any) -> None:
        self.write(json.dumps(order).encode() + b"\n")

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message of these kinds, or of any; the others are dropped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                message: dict[str, Any] = json.loads(line)
                if not kinds or message["type"] in kinds:
                    return message
        raise AssertionError(f"the agent has ended without {kinds}")

    def order(self, program: str, directory: Path, *arguments: str, **more: Any) -> None:
        """Send the start order for a program, once the agent has reported."""
        script = directory / "program.py"
        script.write_text(program)
        self.hear("hello")
        argv = [
            *more.pop("starter", STARTER), "--nnodes", "1", "--node_rank", "0",
            "--nproc_per_node", str(self.args["slots"]),
            "--master_addr", "127.0.0.1", "--master_port", "29500",
            *arguments, str(script),
        ]  # fmt: skip
        env = {"PYTHONPATH": str(REPO), **more.pop("env", {})}
        self.send(op="start", argv=argv, env=env, address="127.0.0.1")

    def start(self, program: str, directory: Path, *arguments: str, **more: Any) -> int:
        """Start its ranks; the first one's pid once it has begun to log."""
        self.order(program, directory, *arguments, **more)
        self.starter: int = self.hear("started")["pid"]
        pid: int = self.hear("rank")["pid"]
        log = self.run_dir / "ranks" / "0.log"
        wait_until(lambda: log.exists() and log.stat().st_size)
        return pid


on_the_oldest_too = pytest.mark.parametrize(
    "agent",
    [
        "python3",
        pytest.param(
            str(OLDEST), marks=pytest.mark.skipif(not OLDEST.exists(), reason="no Python 3.8 here")
        ),
    ],
    ids=["python3", "3.8"],
    indirect=True,
)
