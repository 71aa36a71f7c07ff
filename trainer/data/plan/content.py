"""Names of clips that survive a change of the data set around them.

A clip is its path as the manifest writes it; where a path stands more than once, the n-th of them.
Rows that are added, removed or moved, and corrected captions, do not change the others' ids.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.counter_rng import bits

_CONTENT = 6  # keeps these numbers apart from other draws, see `bits`


def content_ids(manifest: Manifest) -> NDArray[np.uint64]:
    """64 bits for each row [N], about 1 s of CPU a million. Two of 10 million are equal by chance
    once in 370,000 data sets (birthday bound)."""
    names = (path.encode("utf-8", "surrogateescape") for path in manifest.paths)
    digests = b"".join(blake2b(name, digest_size=8).digest() for name in names)
    ids = np.frombuffer(digests, "<u8").astype(np.uint64)
    order = np.argsort(ids, kind="stable")
    new = np.ones(len(ids), bool)
    new[1:] = np.diff(ids[order]) != 0
    first = np.maximum.accumulate(np.where(new, np.arange(len(ids)), 0))
    occurrence = np.empty(len(ids), np.int64)
    occurrence[order] = np.arange(len(ids)) - first
    return np.where(occurrence == 0, ids, ids ^ bits(occurrence, _CONTENT))
