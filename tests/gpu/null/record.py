"""Write figures.json again: python -m tests.gpu.null.record (see README.md; a few minutes)"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gpu.null import figures
from tests.gpu.null.processes import FOLDER, Card
from tests.gpu.null.ways import WAYS, Way


def main() -> None:
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:

        def measured(number: int, ways: Sequence[Way]) -> figures.Figures:
            card = Card(FOLDER, Path(place) / str(number))
            if not ways:
                return figures.of_trials(card.program("trials"))
            # As in the campaign: the first process compiles, and loads more programs by that.
            own = {"TORCHINDUCTOR_CACHE_DIR": str(card.place / "inductor")}
            whole: figures.Figures = {}
            for way in ways:
                whole |= figures.of_steps(way.name, card.program("steps", *way.words, more=own))
            return whole

        by_ours = [(way,) for way in WAYS if not way.is_compiled]
        groups = (tuple(way for way in WAYS if way.is_compiled), *by_ours, ())
        parts = list(pool.map(measured, range(len(groups)), groups))
    whole = {name: one for part in parts for name, one in part.items()}
    for line in figures.worse(figures.kept(), whole):
        print(line)
    figures.write(whole)


if __name__ == "__main__":
    main()
