"""The buckets and the batch order of Open-Sora 1.2, to compare its golden tables with.

A numpy generator for every clip and slot decides its bucket. One torch generator, seeded
seed + epoch, first shuffles the clips of each bucket in the order in which the buckets first
appear, then the list of microbatches.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan


class UpstreamBuckets(Buckets):
    def draw(self, rows, seed, epoch, slot):
        seeds = (seed + epoch + row * len(self.cells) + slot for row in rows.tolist())
        pairs = [np.random.default_rng(number).random(2) for number in seeds]
        one, two = np.array(pairs, np.float64).reshape(-1, 2).T
        return one, two


@dataclass(eq=False)
class UpstreamPlan(DataPlan):
    """Without `drop_last` a bucket's last microbatch is filled up with its first rows; a bucket
    that is less than half full stays short even so, and is left out.
    """

    drop_last: bool = True

    def shuffled(self, cells, epoch):
        self.generator = torch.Generator().manual_seed(self.seed + epoch)
        rows = np.flatnonzero(cells >= 0)
        present, first_seen = np.unique(cells[rows], return_index=True)
        orders = {}
        for cell in present[np.argsort(first_seen)].tolist():
            own, size = rows[cells[rows] == cell], self.buckets.cells[cell].batch_size
            over = len(own) % size
            if over and self.drop_last:
                own = own[:-over]
            elif over:
                own = np.concatenate([own, own[: size - over]])
            if len(own):
                orders[cell] = own[torch.randperm(len(own), generator=self.generator).numpy()]
        return orders

    def cut(self, orders, sizes, epoch):
        accesses = [cell for cell, own in orders.items() for _ in range(len(own) // sizes[cell])]
        shuffled = torch.randperm(len(accesses), generator=self.generator).tolist()
        places = {cell: itertools.count(0, int(sizes[cell])) for cell in orders}
        pairs = [(cell, next(places[cell])) for cell in (accesses[n] for n in shuffled)]
        kinds, firsts = np.array(pairs, np.int64).reshape(-1, 2).T
        return kinds, firsts
