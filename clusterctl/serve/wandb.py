"""Finished videos to W&B, through a process of its own that may be slow or fail."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clusterctl.remote.node_threads import start_thread
from clusterctl.serve.claims import Claims
from trainer.runlog.own_modules import environment, module_command
from trainer.runlog.run_files import read_object

IDENTITY, LOGGED = "wandb.json", ".wandb.json"  # of trainer.infer.wandb_videos
NEW = "new"  # instead of an id
UNIT = "wandb"  # of a folder's claims
END_S = 30.0  # with --once, for what is still to be sent


class VideoLog:
    """Of one run. `warn` gets a sentence, once; after it nothing more is logged in this life."""

    def __init__(self, run_dir: Path, save_to: str, warn: Callable[[str], None]) -> None:
        self._run_dir, self._save_to, self._warn = run_dir.absolute(), save_to, warn
        self._folders: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._queued: dict[Path, Claims] = {}  # not yet in W&B
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def add(self, folder: Path, claims: Claims) -> bool:
        """Log a finished folder, unless that was done before; whether its claims are still needed.

        Raises OSError.
        """
        is_asked = self._save_to or (self._run_dir / IDENTITY).is_file()
        if not is_asked or self._has_failed or self._is_logged(folder):
            return False
        if folder in self._queued or not claims.take(folder, UNIT):
            return True
        self._queued[folder] = claims
        if self._thread is None:
            self._thread = start_thread(self._work)
        self._folders.put(folder)
        return True

    def _is_logged(self, folder: Path) -> bool:
        try:
            below = folder.absolute().relative_to(self._run_dir)
            run = read_object(self._run_dir, str(below / LOGGED)).get("run")
        except (OSError, ValueError):
            return False
        return self._save_to in ("", NEW, run)

    def close(self, *, wait: bool) -> None:
        """With `wait` what is queued still goes out; what does not is logged by the next start."""
        self._folders.put(None)
        if wait and self._thread is not None:
            self._thread.join(END_S)
        child = self._child
        if child is not None and child.poll() is None:
            self._has_failed = True
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._clear()

    def _work(self) -> None:
        try:
            self._child = child = subprocess.Popen(
                module_command("trainer.infer.wandb_videos", self._run_dir, self._save_to),
                cwd="/",  # wandb would take its server from wandb/settings of the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment(WANDB_ERROR_REPORTING="false"),
            )
            assert child.stdin is not None
            assert child.stdout is not None
            while (folder := self._folders.get()) is not None:
                child.stdin.write(json.dumps({"folder": str(folder.absolute())}).encode() + b"\n")
                child.stdin.flush()
                answer = json.loads(child.stdout.readline() or b'{"error": "W&B ended"}')
                if "error" in answer:
                    self._fail(answer["error"])
                    return
                self._queued.pop(folder).clear(folder)
            child.stdin.close()
            child.wait()
        except (OSError, ValueError) as error:
            self._fail(f"W&B cannot be reached: {error}")

    def _fail(self, why: str) -> None:
        if not self._has_failed:  # else it was ended here
            self._has_failed = True
            self._warn(why)
        self._clear()

    def _clear(self) -> None:
        while self._queued:
            folder, claims = self._queued.popitem()
            claims.clear(folder)
