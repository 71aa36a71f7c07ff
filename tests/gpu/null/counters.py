"""What the null GPU counts, of this process or of those that wrote into a folder."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path
from tempfile import NamedTemporaryFile

MOST_DEVICES = 8


class Counters(ctypes.Structure):
    """`struct counters` of card.h."""

    launches: int
    bad: int
    waits: int
    up: int
    down: int
    used: ctypes.Array[ctypes.c_uint64]
    peak: ctypes.Array[ctypes.c_uint64]
    devices: int
    flops: int
    programs: int
    first_bad: bytes
    _fields_ = (
        ("launches", ctypes.c_uint64),
        ("bad", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
        ("up", ctypes.c_uint64),
        ("down", ctypes.c_uint64),
        ("used", ctypes.c_uint64 * MOST_DEVICES),
        ("peak", ctypes.c_uint64 * MOST_DEVICES),
        ("devices", ctypes.c_uint64),
        ("flops", ctypes.c_uint64),
        ("programs", ctypes.c_uint64),
        ("first_bad", ctypes.c_char * 256),
    )

    @property
    def refusal(self) -> str:
        """The first launch that a card would refuse, empty without one."""
        return self.first_bad.decode(errors="replace")

    def devices_used(self) -> list[int]:
        """Cards on which the process allocated or launched something."""
        return [device for device in range(MOST_DEVICES) if self.devices >> device & 1]


def own() -> Counters:
    """Of this process, live."""
    library = ctypes.CDLL(None)
    library.null_gpu_counters.restype = ctypes.POINTER(Counters)
    return library.null_gpu_counters().contents


def reset() -> None:
    """Of this process: all but refused launches, programs and what is allocated."""
    ctypes.CDLL(None).null_gpu_reset()


def kernels() -> Counter[str]:
    """Launches of this process by kernel since the last reset."""
    with NamedTemporaryFile("r") as file:
        if ctypes.CDLL(None).null_gpu_dump(file.name.encode()):
            raise OSError(f"{file.name} cannot be written")
        rows = [line.rstrip("\n").split("\t", 1) for line in file]
    found: Counter[str] = Counter()
    for count, name in rows:
        found[name] += int(count)
    return found


def of_folder(folder: Path) -> dict[int, Counters]:
    """By process, of all that ran with NULL_GPU_COUNTERS=folder, the killed ones too."""
    return {
        int(path.stem): Counters.from_buffer_copy(path.read_bytes())
        for path in sorted(folder.glob("*.counters"))
    }
