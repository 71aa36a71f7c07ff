"""File systems of a node, and the files in them that a launch names."""

from __future__ import annotations

from dataclasses import dataclass

from checks.facts.unknown import Maybe


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds `asked`; `path` is the nearest folder that exists already."""

    asked: str
    path: str
    free_bytes: int
    total_bytes: int
    inodes_free: int
    inodes_total: int
    writable: bool
    is_folder: bool

    @property
    def used_share(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def inodes_used_share(self) -> float:
        return 1 - self.inodes_free / self.inodes_total if self.inodes_total else 0.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system; `disk` is Unknown where statfs gave no answer in time."""

    path: str
    kind: str  # ext4, nfs4, fuse.sshfs
    source: str
    read_only: bool
    disk: Maybe[Disk]

    @property
    def is_network(self) -> bool:
        kind = self.kind.lower()
        others = ("lustre", "beegfs", "gpfs", "wekafs", "glusterfs", "virtiofs")
        return kind in others or kind.startswith(("nfs", "fuse", "cifs", "smb", "ceph", "9p"))


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or folder that the launch names; of a folder all files together."""

    exists: bool
    is_folder: bool = False
    size_bytes: int = 0
    files: int = 1
    has_more: bool = False  # more files than were counted: the size is not that of all
