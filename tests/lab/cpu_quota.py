"""A CPU quota for processes, by a control group of its own; version 1 or 2, as this machine has it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
EMPTY_S = 10.0


class CpuQuota:
    """A context manager; `hold` puts processes in, the end takes them out."""

    def __init__(self, name: str, share: float) -> None:
        self._is_first = (TOP / "cpu" / "cpu.cfs_quota_us").exists()
        self._parent = TOP / "cpu" if self._is_first else TOP
        self._folder, self._quota_us = self._parent / name, int(share * PERIOD_US)

    def __enter__(self) -> CpuQuota:
        self._folder.mkdir()
        if self._is_first:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(self._quota_us))
        else:
            (self._folder / "cpu.max").write_text(f"{self._quota_us} {PERIOD_US}")
        return self

    def hold(self, pids: Iterable[int]) -> None:
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + EMPTY_S
        while (left := (self._folder / "cgroup.procs").read_text().split()) and (
            time.monotonic() < deadline
        ):
            for pid in left:
                with contextlib.suppress(OSError):  # it has ended
                    (self._parent / "cgroup.procs").write_text(pid)
        self._folder.rmdir()


def why_no_quota() -> str | None:
    """Why it cannot be made here."""
    has = (TOP / "cpu" / "cpu.cfs_quota_us").exists() or "cpu" in _controllers()
    return None if has else "there is no control group for the CPU in /sys/fs/cgroup"


def _controllers() -> list[str]:
    with contextlib.suppress(OSError):
        return (TOP / "cgroup.subtree_control").read_text().split()
    return []
