"""`clusterctl serve` in this process, with the stand-in of a sampler."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.output import Output
from clusterctl.serve.begin import Wanted, begin

DEFAULTS: dict[str, Any] = {
    "runs": (),
    "numbers": (),
    "outputs": Path("outputs"),
    "names": (),
    "presets": None,
    "prompts": None,
    "validate": False,
    "no_videos": False,
    "weights": "ema",
    "last_step": None,
    "every": 1,
    "only_first_of_epoch": False,
    "once": True,
    "nodes": None,
    "only": None,
    "without": None,
    "connect_timeout": 3.0,
    "accept_new": False,
    "copies": Path("served"),
    "compute_only": True,
    "save_to": "",
    "gpus": "none",
    "python": sys.executable,
    "web": False,
    "host": "127.0.0.1",
    "port": 0,
    "detach": False,
    "list_servers": False,
    "stop": False,
    "log": None,
    "dry_run": False,
}


def wanted(*runs: Path | str, **changes: Any) -> Wanted:
    return Wanted(**{**DEFAULTS, "runs": tuple(map(str, runs)), **changes})


def serve(*runs: Path | str, page: Callable[[Path], None] = print, **changes: Any) -> int:
    return begin(wanted(*runs, **changes), Output(verbose=1), page)


def command(*words: object, **options: Any) -> subprocess.Popen[str]:
    """The command itself, as a process."""
    pipe = subprocess.PIPE
    line = [sys.executable, "-m", "clusterctl", "serve", *map(str, words)]
    return subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, **options)


def wait_for(what: Callable[[], object], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def videos(run: Path, preset: str = "run") -> dict[str, list[str]]:
    """Names of the finished videos of each checkpoint; half files show as hidden names."""
    place = run / "samples" / preset
    return {
        folder.name: sorted(path.name for path in folder.iterdir() if path.suffix != ".json")
        for folder in sorted(place.iterdir())
    }
