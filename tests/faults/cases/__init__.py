"""The faults, by what they happen to; each is one function that makes it."""

from __future__ import annotations

from tests.faults.cases import (
    disks,
    file_systems,
    head,
    machines,
    nodes,
    owners,
    ranks,
    upgrades,
    users,
)

__all__ = [
    "disks",
    "file_systems",
    "head",
    "machines",
    "nodes",
    "owners",
    "ranks",
    "upgrades",
    "users",
]
