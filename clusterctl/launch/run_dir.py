"""The directory of a run on the head: outputs/NNN-<model>, named by the config."""

from __future__ import annotations

import grp
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.payload.files.ownership import made_by_others
from clusterctl.runs import hidden_values
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.locks import NoLocks, hold
from trainer.runlog.run_dir import make_run_dir

RUN_FILE = ".run-id"  # an agent that finds its run's id in here works on the shared directory
FOLDERS = ("ranks", "stacks", "samples")
LOCK_S = 10.0  # for the next number; it is held for a few file operations


def run_label(model: str, config: str) -> str:
    """Name of the run directory: the model's type, `STDiT3-XL/2` as STDiT3-XL-2.

    A type without a size is followed by the config's name: STDiT3-demo.
    """
    return re.sub(r"[^\w.-]+", "-", model if "-" in model else f"{model}-{Path(config).stem}")


def next_place(folder: Path, label: str) -> Path:
    """The first of `label`-1, `label`-2, … that is not in `folder`; makes nothing."""
    paths = (folder / f"{label}-{number}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def claim_run_dir(outputs: Path, label: str, share: str = "") -> Path:
    """Make the next free directory; launches at the same time get different numbers.

    Only this user can read it (0700), or also the group `share` (2750, files 0640). Raises
    `UsageError` without such a group, or when `outputs` cannot be written or may be replaced.
    """
    gid = group_id(share) if share else None
    if why := made_by_others(str(outputs)):
        raise UsageError(f"no run directory is made in {outputs}: {why}")
    try:
        if not outputs.is_dir():
            outputs.mkdir(mode=0o700, parents=True, exist_ok=True)
            _open_to(outputs, gid)
        # The lock, because two labels would both succeed in making 008-A and 008-B.
        with _locked(outputs):
            path = make_run_dir(outputs, label, mode=0o700)
            _open_to(path, gid)
            return path
    except OSError as error:
        raise UsageError(f"no run directory can be made in {outputs}: {error}") from None


def group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(f"--share {name}: there is no group of that name here") from None


def _open_to(folder: Path, gid: int | None) -> None:
    """Let a group read what is made in the folder from now on; setgid passes the group on."""
    if gid is not None:
        os.chown(folder, -1, gid)
        folder.chmod(0o2750)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of the folder itself, which every user can take who may write there; without it
    after a while, and on file systems without locks: two names may then have one number.

    Raises `OSError` where the folder cannot be opened.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(NoLocks):  # NFS locks no folder; one program makes a directory all the same
            hold(lock, LOCK_S)
        yield
    finally:
        os.close(lock)


def write_layout(
    run_dir: Path, run_id: str, plan: Mapping[str, Any], hidden: Iterable[str] = ()
) -> None:
    """Make the folders, plan.json and the file by which agents recognise a shared directory, and
    what finds hidden values in logs.

    Raises `OSError`; what was there is then as it was.
    """
    mode = 0o640 if run_dir.stat().st_mode & 0o040 else 0o600  # for the group that may read it
    for name in FOLDERS:
        (run_dir / name).mkdir(exist_ok=True)
    write_whole(run_dir / RUN_FILE, f"{run_id}\n", mode)
    hidden_values.write(run_dir, hidden)
    write_whole(run_dir / "plan.json", json.dumps(plan, indent=1) + "\n", mode)
