"""What kinds of microbatches a step is made of: by these its gradient norm is compared with others.

A kind is a resolution at one length, all aspect ratios together: they cost the same, so the plan
puts them into the same steps. The kinds follow from the data plan and the place in it, which are
equal on all ranks; what one rank trains on itself is not asked.

Steps whose ranks have different buckets: a step is of every kind that an eighth or more of its
microbatches have. Its norm counts as one of each of these kinds, and it is judged by the largest of
their limits. The gradient of a step is the mean of its microbatches' gradients, so its norm is at
most the mean of the parts' norms by their shares (triangle inequality), and this at most the
largest of them: a mixture of usual parts does not exceed the largest limit. A part below an
eighth would need more than 50 times the norm of the others to bring the step to 8 times its median.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainer.data.plan.buckets import Bucket
from trainer.data.plan.data_plan import Cursor, DataPlan

_SHARE = 8  # a kind counts in a step from 1/8 of its microbatches on


def kind_of(bucket: Bucket) -> str:
    """`360p 51f` for all ratios of 51 frames at 360p."""
    return f"{bucket.resolution} {bucket.frames}f"


def counted(kinds: Sequence[str]) -> tuple[str, ...]:
    """Of the kinds of a step's microbatches [M], those that count, sorted; the most frequent ones
    where none has an eighth."""
    counts = Counter(kinds)
    least = min(len(kinds) / _SHARE, max(counts.values(), default=0))
    return tuple(sorted(kind for kind, count in counts.items() if count >= least))


class StepKinds:
    """The kinds of any step of a plan."""

    def __init__(self, plan: DataPlan) -> None:
        self._plan = plan
        self._names = [kind_of(bucket) for bucket in plan.buckets.cells]

    def before(self, cursor: Cursor, microbatches: int) -> tuple[str, ...]:
        """Of the step of so many microbatches, over all ranks, that ends at this cursor."""
        first = max(0, cursor.consumed - microbatches)
        cells = self._plan.epoch(cursor.epoch).cells[first : cursor.consumed]
        return counted([self._names[cell] for cell in cells.tolist()])
