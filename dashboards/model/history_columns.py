"""What stands where in a row of history."""

from __future__ import annotations

GPU_COLUMNS = ("power", "util", "memory", "temperature", "clock")
# A node's row: its own figures, the means over its GPUs (each row of the grid shows one of them, so
# they are not computed anew each tick), then GPU_COLUMNS for each GPU.
MEANS = tuple("gpu_" + name for name in GPU_COLUMNS)
NODE_COLUMNS = ("cpu", "memory", "load", "network_mb_s", *MEANS)
# A fleet's row: power in kW because watts of 1,000 nodes exceed a half float.
FLEET_COLUMNS = (
    "power_kw",
    "util",
    "gpu_memory",
    "temperature",
    "clock",
    "cpu",
    "memory",
    "load",
    "network_mb_s",
)

# Stands in recordings: rows that were laid out otherwise are not taken for these.
LAYOUT = [list(FLEET_COLUMNS), list(NODE_COLUMNS), list(GPU_COLUMNS)]


def gpu_column(index: int, metric: str) -> int:
    """Where a GPU's metric stands in its node's row."""
    return len(NODE_COLUMNS) + index * len(GPU_COLUMNS) + GPU_COLUMNS.index(metric)
