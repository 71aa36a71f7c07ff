"""The faults, by what they happen to; each is one function that makes it."""

from __future__ import annotations

from tests.faults.cases import disks, head, nodes, owners, ranks

__all__ = ["disks", "head", "nodes", "owners", "ranks"]
