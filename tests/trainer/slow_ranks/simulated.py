"""Steps of ranks in scripted time: buckets of many lengths, noise with heavy tails, and faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.slow_ranks.judge import COMPARED, Floats, Ints, Judge, Slow

BUCKETS = 12
START = 150  # of the fault
_SHARES = np.array([0.02, 0.3, 0.23, 0.45])  # of the phases, in the order of COMPARED


@dataclass(frozen=True)
class Training:
    """`noise` is the standard deviation of a rank's own work in a step where all compute alike, with
    tails of Student's t with 3 degrees; 1 % of the steps of a rank have a spike beyond that."""

    ranks: int = 16
    seed: int = 0
    noise: float = 0.03
    is_mixed: bool = False  # ranks of one step have different buckets
    each: int = 1  # microbatches of a rank in a step
    differ: float = 0.0  # standard deviation of what ranks differ all the time
    slow: tuple[int, ...] = ()
    share: float = 0.05
    phase: str = "forward"
    moves: int = 0  # steps after which the next rank is the slow one
    every: int = 1  # only each such step is slow, by as much more
    common: float = 0.0  # all ranks, from START on, in the phase data

    def steps(self, count: int) -> Iterator[tuple[Floats, Ints]]:
        draw = np.random.default_rng(self.seed)
        usual = draw.uniform(0.3, 3.0, size=(BUCKETS, 1)) * _SHARES
        of_rank = 1 + self.differ * draw.standard_normal(self.ranks)
        phase = COMPARED.index(self.phase)
        for step in range(count):
            drawn = draw.integers(BUCKETS, size=(self.ranks, self.each))
            cells = drawn if self.is_mixed else np.broadcast_to(drawn[:1], drawn.shape)
            seconds = usual[cells].sum(axis=1) * of_rank[:, None]
            tails = draw.standard_t(3, size=seconds.shape) / np.sqrt(3)  # deviation 1
            # of the sum over phases: `noise` of the whole
            seconds *= np.clip(1 + self.noise * tails / np.sqrt((_SHARES**2).sum()), 0.5, None)
            spikes = draw.random(self.ranks) < 0.01
            seconds[spikes, 3] *= 1 + np.minimum(draw.pareto(2.0, spikes.sum()), 10.0)
            seconds *= 1 + 0.03 * draw.standard_normal()  # of the whole cluster
            if step >= START:
                seconds[:, 0] += self.common * seconds.sum(axis=1)
                for rank in [step // self.moves % self.ranks] if self.moves else self.slow:
                    is_hit = step % self.every == 0
                    seconds[rank, phase] += self.share * self.every * is_hit * seconds[rank].sum()
            yield seconds, cells

    def judged(self, count: int) -> Iterator[tuple[int, tuple[Slow, ...]]]:
        """(step, named) of each judgement; steps count from the fault."""
        judge = Judge(self.ranks)
        for step, (seconds, cells) in enumerate(self.steps(count)):
            if judge.add(seconds, cells):
                yield step + 1 - START, judge.named

    def first(self, count: int) -> tuple[int, tuple[Slow, ...]] | None:
        return next(((step, named) for step, named in self.judged(count) if named), None)

    def all_named(self, count: int) -> set[int | None]:
        return {one.rank for _, named in self.judged(count) for one in named}
