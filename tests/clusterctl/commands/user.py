"""A user who types commands about launched runs, with terminals where they matter."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.runs import owner
from tests.clusterctl.launch.harness import PYTHON, REPO, read_lines, tagged, wait_until

# Stands for the interpreter on the nodes: `trainer.train` is the test's program, the rest is real.
FAKE_PYTHON = """#!/bin/sh
PYTHONPATH={folder}:{repo} exec {python} "$@"
"""
FAKE_TRAINER = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        files = {{"trainer.train": {program!r}, "trainer.starter.train_modules": {empty!r}}}
        return importlib.util.spec_from_file_location(name, files[name]) if name in files else None

sys.meta_path.insert(0, Finder)
"""
SHORT = (
    "--grace", "3", "--min-free", "0", "--skip-preflight", "--yes", "--max-restarts", "0",
)  # fmt: skip


class User:
    """Types commands in a folder of its own; what it starts is ended with the test."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.outputs = directory / "outputs"
        self.python = directory / "python"
        self.config = directory / "tiny.py"
        self.config.write_text("model = dict(type='STDiT3-XL/2')\n")
        self.processes: list[subprocess.Popen[str]] = []

    def program(self, text: str) -> None:
        """What a rank runs."""
        script = self.directory / "program.py"
        script.write_text(text)
        folder = self.directory / "site"
        folder.mkdir(exist_ok=True)
        (folder / "empty.py").touch()
        fake = FAKE_TRAINER.format(program=str(script), empty=str(folder / "empty.py"))
        (folder / "sitecustomize.py").write_text(fake)
        words = {"folder": str(folder), "repo": str(REPO), "python": PYTHON}
        words = {name: shlex.quote(word) for name, word in words.items()}
        self.python.write_text(FAKE_PYTHON.format(**words))
        self.python.chmod(0o755)

    def start(
        self,
        *words: str,
        hostfile: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        preexec_fn: Callable[[], object] | None = None,
        **env: str,
    ) -> subprocess.Popen[str]:
        argv = [
            sys.executable, "-m", "clusterctl", "launch", str(self.config),
            str(hostfile or self.cluster.hostfile),
            "--outputs", str(self.outputs), "--python", str(self.python), *words,
        ]  # fmt: skip
        options = {"stdin": stdin, "stderr": stderr, "preexec_fn": preexec_fn}
        return self._start(argv, env, **options)

    def command(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Another command of clusterctl than launch."""
        return self._start([sys.executable, "-m", "clusterctl", *words], {}, **options)

    def ask(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and document of a command."""
        process = self.command(*words, "--json")
        out, _ = process.communicate(timeout=40)
        return process.returncode, json.loads(out)

    def _start(
        self, argv: Sequence[str], env: dict[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **env}, **pipes,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what is left: views, supervisors, ranks."""
        for process in self.processes:
            process.kill()
            process.communicate()
        for run_dir in self.outputs.glob("*-*"):
            found = owner.find(run_dir)
            if found is not None:
                os.kill(found.pid, signal.SIGKILL)
            plan = run_dir / "plan.json"
            for pid in tagged(json.loads(plan.read_text())["run_id"]) if plan.exists() else ():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)

    def type(self, *words: str, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a launch that ends by itself."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=40)
        return process.returncode, out, err

    @property
    def run_dir(self) -> Path:
        return self.outputs / "001-STDiT3-XL-2"

    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.run_dir / "events.jsonl")

    def run_id(self) -> str:
        """Of the first run, once all of its ranks are there."""
        logs = [self.run_dir / "ranks" / f"{rank}.log" for rank in (0, 1)]
        wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), 20)
        return str(json.loads((self.run_dir / "plan.json").read_text())["run_id"])


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]], *words: str) -> None:
        self.head, terminal = os.openpty()
        self.process = start(
            *words,
            stdin=terminal,
            stderr=terminal,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),
        )
        os.close(terminal)
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self.head, keys)

    def wait_for(self, text: str) -> None:
        os.set_blocking(self.head, False)

        def is_there() -> bool:
            with contextlib.suppress(OSError):
                self.shown += os.read(self.head, 1 << 16).decode()
            return text in self.shown

        wait_until(is_there, 20)


QUESTION = "[d]etach (it trains on), [s]top (it saves), [c]ancel (keep watching)?"
