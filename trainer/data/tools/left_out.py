"""What a verb says of the rows that it left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.data.manifest.manifest import WrongRow
from trainer.data.manifest.pipeline import listing


def tell_left_out(wrong: Sequence[WrongRow]) -> None:
    """Print their number and the first of them with line and reason to stderr, if any."""
    if wrong:
        print(f"left out {len(wrong):,} rows{listing(wrong)}", file=sys.stderr)
