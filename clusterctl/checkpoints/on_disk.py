"""Checkpoints that a run directory holds, their sizes, and the free space of its disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.checkpoints.settings_of_run import Size
from trainer.runlog import run_files
from trainer.runlog.checkpoint_name import MANIFEST, complete_names, epoch_and_step
from trainer.runlog.retention import OVERHEAD_BYTES

FOLDERS = ("model", "ema", "optimizer")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete one: it has a manifest, which says what its files hold."""

    path: Path
    step: int
    size: Size


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Of a file system, for this user. Quotas are not in it."""

    folder: Path  # that was asked: the one that is named, or the nearest above it that exists
    free_bytes: int
    total_bytes: int


def checkpoints_in(run_dir: Path) -> tuple[list[Checkpoint], list[str]]:
    """Complete ones in the order in which they were made, and a sentence for each of which the
    size could not be read. Raises OSError."""
    found, left_out = [], []
    for name in complete_names(run_dir):
        path, counts = run_dir / name, epoch_and_step(name)
        try:
            size = _size(run_files.read_object(run_dir, f"{name}/{MANIFEST}")["files"])
            found.append(Checkpoint(path, counts[1] if counts else 0, size))
        except FileNotFoundError:
            continue  # it was deleted meanwhile
        except OSError as error:
            link = "its folder is a link: links are not followed"
            left_out.append(f"{name}: {link if path.is_symlink() else error.strerror or error}")
        except (ValueError, LookupError, TypeError, AttributeError):
            left_out.append(f"{name}: its {MANIFEST} is damaged")
    return found, left_out


def _size(files: Mapping[str, Any]) -> Size:
    sizes = dict.fromkeys((*FOLDERS, "other"), 0)
    for name, entry in files.items():
        folder = name.partition("/")[0]
        sizes[folder if folder in FOLDERS else "other"] += max(0, int(entry["size"]))
    own = {f"{name}_bytes": size for name, size in sizes.items()}
    return Size(**own, extra_bytes=sizes["ema"] + OVERHEAD_BYTES)


def free_space(folder: Path) -> FreeSpace:
    """Where `folder` is, or would be made. Raises OSError."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    found = os.statvfs(place)
    return FreeSpace(place, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
