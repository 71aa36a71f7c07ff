"""The batch order of Open-Sora 1.2, for repeating a run of it.

One torch generator, seeded seed + epoch, first shuffles the clips of each bucket in the order in
which the buckets first appear, then the list of microbatches. Unlike our own order it leaves out
the last rows of each bucket in every epoch, and a row added anywhere changes all of it.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.plan.counter_rng import Ints


def order_epoch(
    cells: NDArray[np.int32], batch_sizes: dict[int, int], seed: int, epoch: int, drop_last: bool
) -> tuple[dict[int, Ints], list[tuple[int, int]]]:
    """Rows of each cell in order, and the microbatches as (cell, place of its first row).

    `cells` is the cell of each row [N], -1 for rows left out. Without `drop_last` a bucket's last
    microbatch is filled up with its first rows; a bucket that is less than half full stays short
    even so, and upstream then leaves it out.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    rows = np.flatnonzero(cells >= 0)
    present, first_seen = np.unique(cells[rows], return_index=True)
    orders: dict[int, Ints] = {}
    accesses: list[int] = []
    for cell in present[np.argsort(first_seen)].tolist():
        own, size = rows[cells[rows] == cell], batch_sizes[cell]
        over = len(own) % size
        if over and drop_last:
            own = own[:-over]
        elif over:
            own = np.concatenate([own, own[: size - over]])
        if len(own):
            orders[cell] = own[torch.randperm(len(own), generator=generator).numpy()]
            accesses += [cell] * (len(own) // size)
    shuffled = torch.randperm(len(accesses), generator=generator).tolist()
    places = {cell: itertools.count(0, batch_sizes[cell]) for cell in orders}
    return orders, [(cell, next(places[cell])) for cell in (accesses[n] for n in shuffled)]
