"""Upload what runs have recorded offline for W&B, as wandb's own program does it."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.command_line import Parser, above_0, command
from trainer.errors import ConfigError, TrainerError
from trainer.runlog import units
from trainer.runlog.own_modules import environment, module_command
from trainer.runlog.run_dir import RunDirectoryInUse, lock
from trainer.trackers.wandb_run import FILE, keep_id, known_id

_EXAMPLES = """\
examples: python -m trainer.sync outputs/003-STDiT3-XL-2
          python -m trainer.sync outputs/00* --dry-run"""
_FILES = "wandb/offline-run-*/run-*.wandb"
_LOGS = "logs"  # not uploaded; wandb itself puts a link to its own log there
_ID_OF_FILE = re.compile(r"run-([A-Za-z0-9_-]{1,64})\.wandb")
# What wandb decorates its lines with.
_COLOUR, _LABEL = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"^wandb:\s*(ERROR|WARNING)?\s*")
_NOISE = ("Syncing", "wandb/", "View", "Done", "Run history", "Network error resolved")


class SyncError(TrainerError):
    """W&B has not taken a start; what was uploaded before it stays."""


def parser() -> Parser:
    text = (
        "Upload the offline starts of runs to W&B, the oldest first, each run as the one that its "
        "wandb.json names. What is uploaded already is left out."
    )
    parser = Parser("sync", text, epilog=_EXAMPLES)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    what = "seconds that a start may take; default 600"
    parser.add_argument("--timeout", type=above_0, default=600.0, metavar="S", help=what)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be uploaded")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    for run_dir in options.runs:
        if not run_dir.is_dir():
            raise ConfigError(f"there is no run directory {run_dir}")
    if not options.dry_run and importlib.util.find_spec("wandb") is None:
        raise ConfigError("W&B is not installed here", hint="pip install wandb")
    waits = False
    for run_dir in options.runs:
        waits |= _sync(run_dir.resolve(), options.timeout, options.dry_run)
    return 3 if waits else 0


def _sync(run_dir: Path, timeout_s: float, is_dry: bool) -> bool:
    """Upload what is not yet; whether a start is left out because it is still written to."""
    files = _starts(run_dir)
    if not files:
        hint = "--wandb offline records them; an online run needs no upload"
        raise ConfigError(f"{run_dir} has no offline starts ({_FILES})", hint=hint)
    left = [path for path in files if not _marker(path).exists()]
    waits = bool(left) and left[-1] == files[-1] and _is_used(run_dir)
    if waits:
        left.pop()
    known, is_there = known_id(run_dir / FILE)
    run_id = known or _id_of(files[0])
    is_there = is_there or len(left) + waits < len(files)
    for path in left:
        print(f"{'would upload' if is_dry else 'uploading'} {path.parent.name} to {run_id}")
        if not is_dry:
            _upload(path, run_id, "must" if is_there else "allow", timeout_s)
            keep_id(run_dir / FILE, run_id, True)  # the next online start continues it, too
            is_there = True
    count = f"{len(files) - waits - (len(left) if is_dry else 0)} of {len(files)}"
    print(f"{run_dir.name}: {count} offline starts are in W&B, run {run_id}")
    if waits:
        print(f"{run_dir.name} is training: its newest start is left out; sync again at its end")
    return waits


def _starts(run_dir: Path) -> list[Path]:
    """The files of the offline starts, the oldest first.

    wandb uploads what lies beside them. The run may be somebody else's, and a link would send W&B
    any file of this user. Raises ConfigError.
    """
    folder = run_dir / _FILES.partition("/")[0]
    names = [folder] if folder.is_symlink() else []
    starts = [] if names else sorted(run_dir.glob(_FILES.rpartition("/")[0]))
    for start in starts:
        names += [start] if start.is_symlink() else []
        for place, folders, files in os.walk(start):
            if Path(place) == start and _LOGS in folders:
                folders.remove(_LOGS)
            for path in (Path(place, name) for name in (*folders, *files)):
                kind = path.lstat().st_mode
                names += [] if stat.S_ISREG(kind) or stat.S_ISDIR(kind) else [path]
    if names:
        hint = "delete it if you do not know it; wandb would upload what it leads to"
        raise ConfigError(f"{names[0]} is a link or no plain file: nothing is uploaded", hint=hint)
    return sorted(run_dir.glob(_FILES), key=lambda path: path.parent.name)  # by their time


def _upload(path: Path, run_id: str, resume: str, timeout_s: float) -> None:
    """Raises SyncError in one sentence.

    wandb 0.31 asks the server only with WANDB_RESUME how much of a run it has. Without it, the
    lines of a second start replace those of the first (seen against a stand-in of the server).
    """
    words = module_command("wandb", "sync", "--id", run_id, path)
    started = f"{path.parent.name} is not uploaded"
    try:
        # wandb takes its server, to which it sends the key, from wandb/settings where it starts.
        with tempfile.TemporaryDirectory(prefix="trainer-sync-") as neutral:
            done = subprocess.run(
                words,
                cwd=neutral,
                env=environment(WANDB_RESUME=resume, WANDB_RUN_ID=run_id, WANDB_DIR=neutral),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        hint = "is the server reachable from here? --timeout S waits longer"
        raise SyncError(
            f"{started}: W&B took more than {units.duration(timeout_s)}", hint=hint
        ) from None
    if done.returncode == 0 and _marker(path).exists():
        return
    hint = "start the command again: what is uploaded is left out"
    why = _why(done.stdout) or f"wandb sync ended with exit code {done.returncode}"
    if re.search(r"not authenticated|api key|login", why, re.IGNORECASE):
        hint = "wandb login, or set WANDB_API_KEY"
    elif re.search(r"deleted|not found|does not exist|\b(404|409|410)\b", why, re.IGNORECASE):
        hint = f"if run {run_id} is gone from W&B, delete {FILE} in the run directory"
    raise SyncError(f"{started}: {why}", hint=hint)


def _why(output: str) -> str:
    """The last thing that wandb says of what is wrong."""
    lines = [_LABEL.sub("", _COLOUR.sub("", line)).strip() for line in output.splitlines()]
    said = [line for line in lines if line and not line.startswith(_NOISE)]
    return said[-1] if said else ""


def _marker(path: Path) -> Path:
    """What wandb leaves beside a file that it has uploaded."""
    return path.with_suffix(".wandb.synced")


def _id_of(path: Path) -> str:
    match = _ID_OF_FILE.fullmatch(path.name)
    if match is None:
        raise ConfigError(f"{path.name} is not named run-ID.wandb")
    return match[1]


def _is_used(run_dir: Path) -> bool:
    try:
        release, _ = lock(run_dir)
    except RunDirectoryInUse:
        return True
    release()
    return False
