"""What is left for a process in its control group: files that the kernel keeps at hand take no room."""

from __future__ import annotations

from pathlib import Path

from trainer.models import memory

GIB = 1 << 30


def group(folder: Path, limit: str, used: int, **stat: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text("".join(f"{k} {v}\n" for k, v in stat.items()))


def test_page_cache_is_room_and_files_in_memory_are_not(tmp_path: Path) -> None:
    own = memory.Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].split(":")[-1]
    folder = tmp_path / own.lstrip("/")
    group(tmp_path, "max", 0)
    # 7 of 8 GiB: 1 of weights, 5 of clips that were read, 1 in /dev/shm
    group(folder, str(8 * GIB), 7 * GIB, anon=GIB, file=6 * GIB, shmem=GIB, slab_reclaimable=0)
    assert next(memory._cgroup_free(tmp_path)) == 6 * GIB
    group(folder, str(8 * GIB), 7 * GIB, anon=7 * GIB, file=0, shmem=0, slab_reclaimable=0)
    assert next(memory._cgroup_free(tmp_path)) == GIB
    (folder / "memory.stat").unlink()
    assert next(memory._cgroup_free(tmp_path)) == GIB
