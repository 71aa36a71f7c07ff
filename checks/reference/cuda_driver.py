"""The oldest NVIDIA driver that each CUDA works with."""

from __future__ import annotations

MINIMUM = {13: 580, 12: 525, 11: 450}
"""Major of CUDA -> major of the driver. Within a major any driver from there on serves any minor.

Table 1 of https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html:
CUDA 13.x >= 580, CUDA 12.x >= 525, CUDA 11.x >= 450. An older driver serves a newer CUDA only with
NVIDIA's package cuda-compat on the library path.
"""

COMPLETE = {
    "12.4": 550, "12.6": 560, "12.8": 570, "12.9": 575, "13.0": 580,
}  # fmt: skip
"""CUDA -> major of the driver that came with it: from there on nothing of it is missing.

Table 3 of https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/ (12.4: 550.54.14, 12.6:
560.28.03, 12.8: 570.26, 12.9: 575.51.03, 13.0: 580.65.06), for the versions that torch is built
for. Before it, code that a program compiles to PTX with this CUDA does not run.
"""

LOCKS = {13: "cuda", 12: "cuda12"}
"""Major of CUDA -> LOCK= of `make venv`."""
