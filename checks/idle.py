"""Whether GPUs compute, by their power: what an idle one among them is compared with. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def working_power_w(
    powers_w: Sequence[float],
    limit_w: float | None,
    *,
    fewest: int,
    share: float,
    else_w: float | None = None,
    median: Callable[[Sequence[float]], float] = statistics.median,
) -> float | None:
    """The median power where it shows that most GPUs compute: at least `share` of their limit.

    `else_w` decides if the limit is unknown. None for fewer than `fewest` GPUs: any of them
    could be the odd one.
    """
    least_w = share * limit_w if limit_w else else_w
    if least_w is None or len(powers_w) < fewest:
        return None
    middle_w = median(powers_w)
    return middle_w if middle_w >= least_w else None
