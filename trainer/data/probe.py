"""From path and text to a whole manifest: length, size and rate of every file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.decode import Decoder
from trainer.data.manifest import COLUMNS, WrongRow, read_columns

PROBED = ("num_frames", "height", "width", "aspect_ratio", "fps", "resolution")


@dataclass(frozen=True)
class Probed:
    """The columns of a whole manifest, and the rows that are not in it."""

    columns: dict[str, list[Any]]
    bad: tuple[WrongRow, ...]

    def __len__(self) -> int:
        return len(self.columns["path"])


def probe_manifest(
    source: Path,
    workers: int,
    root: Path | None = None,
    clip_timeout_s: float = 30.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probed:
    """Probe every file of `source` (columns path and text; others are kept), rows in order.

    Sizes are those after the container's rotation. `workers` processes, each with a deadline for a
    file; `progress` gets (rows done, rows in all). Raises ManifestError, DecoderBroken.
    """
    columns, lines, bad = read_columns(source, ("path", "text"))
    paths = columns["path"]
    folder = root or source.resolve().parent
    mine = threading.local()
    decoders: list[Decoder] = []

    def facts(path: str) -> dict[str, Any]:
        if not hasattr(mine, "decoder"):
            mine.decoder = Decoder(clip_timeout_s, role="probe")
            decoders.append(mine.decoder)
        found: dict[str, Any] = mine.decoder.probe(str(folder / path))
        return found

    found: list[dict[str, Any]] = []
    try:
        # Each thread keeps its decoder; map gives the answers in the order of the rows.
        with ThreadPoolExecutor(max(1, workers)) as pool:
            for answer in pool.map(facts, paths):
                found.append(answer)
                progress(len(found), len(paths))
    finally:
        for decoder in decoders:
            decoder.close()
    good = [index for index, answer in enumerate(found) if "error" not in answer]
    for index, answer in enumerate(found):
        if "error" in answer:
            bad.append(WrongRow(lines[index], f"{paths[index]}: {answer['error']}"))
    kept = {name: _take(values, good) for name, values in columns.items() if name not in PROBED}
    kept |= _facts([found[index] for index in good])
    order = [*COLUMNS, *(name for name in kept if name not in COLUMNS)]
    return Probed(
        {name: kept[name] for name in order}, tuple(sorted(bad, key=lambda row: row.line))
    )


def _take(values: Sequence[Any], indices: list[int]) -> list[Any]:
    return [values[index] for index in indices]


def _facts(found: list[dict[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in PROBED}
    for answer in found:
        height, width = answer["height"], answer["width"]
        row = {**answer, "aspect_ratio": round(height / width, 4), "resolution": height * width}
        row["fps"] = round(answer["fps"], 4)
        for name in PROBED:
            columns[name].append(row[name])
    return columns
