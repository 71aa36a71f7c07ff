"""GPUs that differ from the fleet: idle among busy ones, or too hot. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from checks.idle import working_power_w
from dashboards.model.ring_buffer import gpu_column
from dashboards.model.state import NodeState, State
from dashboards.model.thresholds import DEFAULT, Limits

ODD_ROWS = 5  # one low reading between two kernels is normal


def busy_power_w(watts: Sequence[float], limit_w: float | None, limits: Limits) -> float | None:
    """Median power of GPUs with such a power limit; None while they are not busy."""
    peers, share = limits.idle_peers, limits.busy_share
    return working_power_w(watts, limit_w, fewest=peers, share=share, else_w=limits.busy_w)


def odd_gpus(state: State) -> dict[tuple[str, int], str]:
    """(node, GPU) -> why it is odd."""
    live = state.live()
    measured = [gpu for sample in live for gpu in sample.gpus or () if gpu.power_w is not None]
    limit_w = measured[0].power_limit_w if measured else None
    middle = busy_power_w([gpu.power_w or 0.0 for gpu in measured], limit_w, DEFAULT)
    low = 0.0 if middle is None else DEFAULT.idle_share * middle
    odd = {}
    for sample in live:
        for gpu in sample.gpus or ():
            power, temperature = gpu.power_w, gpu.temperature_c
            is_low = power is not None and power < low
            if not is_low and (temperature is None or temperature < DEFAULT.hot_c):
                continue  # nearly all, nearly always
            if is_low and _low_for_long(state.nodes[sample.node], gpu.index, low):
                odd[sample.node, gpu.index] = f"{power:.0f} W, the others {middle:.0f} W"
            elif temperature is not None and temperature >= DEFAULT.hot_c:
                odd[sample.node, gpu.index] = f"{temperature:.0f} °C"
    return odd


def _low_for_long(node: NodeState, index: int, limit_w: float) -> bool:
    past = node.history.column(gpu_column(index, "power"), ODD_ROWS)
    return len(past) >= ODD_ROWS and all(value < limit_w for value in past if value == value)
