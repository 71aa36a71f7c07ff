"""Write figures.json again: python -m tests.gpu.null.record (see README.md; a few minutes)"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gpu.null import figures
from tests.gpu.null.processes import FOLDER, Card
from tests.gpu.null.ways import WAYS, Way


def main() -> None:
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:

        def measured(number: int, way: Way | None) -> figures.Figures:
            card = Card(FOLDER, Path(place) / str(number))
            if way is None:
                return figures.of_trials(card.program("trials"))
            return figures.of_steps(way.name, card.program("steps", *way.words))

        ways = (*WAYS, None)
        parts = list(pool.map(measured, range(len(ways)), ways))
    whole = {name: one for part in parts for name, one in part.items()}
    for line in figures.worse(figures.kept(), whole):
        print(line)
    figures.write(whole)


if __name__ == "__main__":
    main()
