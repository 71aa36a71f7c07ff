"""Questions to the trainer, each in a process of its own: `python -m trainer… --json`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import UsageError
from trainer.runlog.json_file import object_of
from trainer.runlog.own_modules import environment, module_command

TIMEOUT_S = 120.0  # it may import torch


def ask(words: Sequence[str], what: str = "", workdir: Path | None = None) -> dict[str, Any]:
    """The JSON object on the last line of what a module prints; `words` are its name and its
    arguments. Raises `UsageError` with the trainer's own sentence, else with the last line of its
    errors behind `what` cannot be done."""
    before = f"{what}: " if what else ""
    try:
        done = run_trainer(words, workdir)
    except subprocess.TimeoutExpired:
        why = f"python -m {words[0]} gave no answer in {units.duration(TIMEOUT_S)}"
        raise UsageError(before + why) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{before}python -m {words[0]} cannot be run: {error}") from None
    said = done.stdout.strip().splitlines()
    if done.returncode == 0 and said and (found := object_of(said[-1])):
        return found
    last = (done.stderr.strip() or "no output").splitlines()[-1]
    raise refusal(done.stderr) or UsageError(before + last)


def run_trainer(
    words: Sequence[str], workdir: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a module apart from this process and its terminal. Raises OSError, ValueError and
    `subprocess.TimeoutExpired`."""
    return subprocess.run(
        module_command(*words),
        cwd=workdir,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def refusal(stderr: str) -> UsageError | None:
    """The trainer's own sentence and hint, behind any warnings of libraries; None without one."""
    said, _, hint = stderr.strip().partition("\n  hint: ")
    last = (said.splitlines() or [""])[-1]
    if not last.startswith("error: "):
        return None
    return UsageError(last.removeprefix("error: "), hint=hint or None)
