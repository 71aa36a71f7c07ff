"""config.json of a run directory: the resolved config, the command, the code, the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import sources
from trainer.config.load import RUN_CONFIG, Config, to_dict
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_dir import own_attempt
from trainer.runlog.run_files import read_object

# Variables that explain a run; names with these words in them are never written.
_KEPT = ("NCCL_", "GLOO_", "OMP_", "CUDA_", "TORCH_", "WORLD_SIZE", "MASTER_", "CLUSTERCTL_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL", "COOKIE")

_OF_THE_BEGINNING = ("load", "start_from_scratch", "start_epoch", "start_step")


def describe(config: Config, run_dir: Path, argv: Sequence[str]) -> list[str]:
    """config.json: all that is needed to understand and repeat the run, without secrets; code.json.

    Returns how a later attempt differs from the one before in configuration or code.
    """
    is_later = own_attempt() > 1
    notes = [_differs(config, run_dir)] if is_later else []
    document: dict[str, Any] = {
        "schema": 1,
        "config": to_dict(config),
        "argv": list(argv),
        "commit": _commit(),
        "environment": _environment(os.environ),
        "python": sys.version.split()[0],
    }
    # An earlier start's is whole until this one is.
    write_whole(run_dir / RUN_CONFIG, json.dumps(document, indent=1) + "\n")
    notes.append(sources.record(run_dir, is_later=is_later))
    return [note for note in notes if note]


def _differs(config: Config, run_dir: Path) -> str:
    """What people have changed in the configuration since the attempt before."""
    try:
        before = read_object(run_dir, RUN_CONFIG)["config"]
        after = json.loads(json.dumps(to_dict(config)))
        names = sources.changed(sources.flat(before), sources.flat(after))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    names = [name for name in names if name not in _OF_THE_BEGINNING]
    return f"{sources.shown(names)}: not the configuration of the attempt before" if names else ""


def said_of(run_dir: Path) -> dict[str, Any]:
    """What the config.json of a run says beside the configuration, for trackers; {} without it."""
    try:
        document = read_object(run_dir, RUN_CONFIG)
    except (OSError, ValueError):
        return {}
    found = {"git_commit": document.get("commit"), "python": document.get("python")}
    argv = document.get("argv")
    return found | ({"command_line": " ".join(map(str, argv))} if isinstance(argv, list) else {})


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in sorted(environ.items()) if name.startswith(_KEPT)}
    return {name: v for name, v in kept.items() if not any(word in name for word in _SECRET)}


def _commit() -> str | None:
    """The checkout's commit, with + when it has changes; None outside of one.

    Nothing is written there: `git describe --dirty` would write the index again, with our umask,
    and another user of this checkout could not read it then. The owner may be another user, whose
    code we run already.
    """
    try:
        commit = _git("rev-parse", "--verify", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    git = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false"]
    home = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [*git, *words], cwd=home, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
