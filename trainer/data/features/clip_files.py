"""Whether latents were made of the files that a manifest names now, not of others of equal names.

Content ids are made of paths as they are written, so that a data set may move as a whole; `clips/
0.mp4` of another folder has the same. So every latent keeps size, time and a hash of its clip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.features.index import Table
from trainer.data.features.units import Keys, Units, keys_of
from trainer.data.manifest.manifest import Manifest
from trainer.data.video.decode import Decoder, DecoderBroken
from trainer.data.video.decoder_pool import DecoderPool

FACTS = ("bytes", "mtime", "file")
SAMPLED = 20_000  # clips that a run compares at its start; encode compares all
_AT_ONCE = 64

Facts = set[tuple[int, int, int]]


@dataclass
class Compared:
    """What became of the clips whose latents are there."""

    rows: int = 0  # that have latents
    looked_at: int = 0  # of them, and could be compared
    changed: dict[int, str] = field(default_factory=dict)  # row -> how
    unread: int = 0
    why_unread: str = ""  # of the first
    unknown: int = 0  # latents that do not say of which file they are

    def notes(self, folder: Any) -> list[str]:
        """For people: what could not be found out."""
        found = []
        if self.unknown:
            found.append(
                f"{self.unknown:,} latents in {folder} were made before the files of clips were "
                "kept: whether they are of these clips is not known"
            )
        if self.unread:
            found.append(
                f"{self.unread:,} of {self.rows:,} clips could not be compared with their features "
                f"({self.why_unread})"
            )
        return found


def compare(
    manifest: Manifest,
    units: Units,
    ids: Keys,
    table: Table,
    workers: int,
    clip_timeout_s: float,
    most: int | None = None,
    only: NDArray[np.int64] | None = None,
    lives: Callable[[], None] = lambda: None,
) -> Compared:
    """Look at the clips that have latents, of all or of the rows `only`; at `most` of them evenly
    spread. Calls `lives` for each."""
    wanted = np.unique(units.rows)
    if only is not None:
        wanted = np.intersect1d(wanted, only)
    if most is not None and len(wanted) > most:
        wanted = wanted[np.linspace(0, len(wanted) - 1, most).astype(int)]
    known = _known(units, ids, table, wanted)
    found = Compared(rows=len(known))
    rows = sorted(known)
    for row in rows:
        found.unknown += (0, 0, 0) in known[row]
        known[row].discard((0, 0, 0))
    rows = [row for row in rows if known[row]]
    with closing(DecoderPool(max(1, workers), clip_timeout_s, "compare")) as pool:
        for row, now in _looked_at(pool, manifest, rows, known):
            lives()
            if isinstance(now, str):
                found.unread += 1
                found.why_unread = found.why_unread or f"{manifest.locate(row)}: {now}"
                continue
            found.looked_at += 1
            for facts in known[row]:
                if difference := _difference(facts, now):
                    found.changed[row] = difference
    return found


def _known(units: Units, ids: Keys, table: Table, wanted: NDArray[np.int64]) -> dict[int, Facts]:
    """Row -> facts of the files that its latents were made of, of the rows `wanted`."""
    known: dict[int, Facts] = {}
    is_wanted = np.isin(units.rows, wanted)
    for _, length, every in units.each_stream():
        places = every[is_wanted[every]]
        rows = units.rows[places]
        found = table.find(keys_of(ids[rows], units.height[places], units.width[places], length))
        rows, found = rows[found >= 0], found[found >= 0]
        columns = [table.columns[name][found].tolist() for name in FACTS]
        for row, facts in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
            known.setdefault(row, set()).add(facts)
    return known


def _looked_at(
    pool: DecoderPool, manifest: Manifest, rows: list[int], known: dict[int, Facts]
) -> Iterator[tuple[int, list[int] | str]]:
    """(row, facts of its file now, or why it cannot be read). After the first question that is not
    answered in time no other is asked."""
    asked: list[tuple[list[int], Future[Any]]] = []
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        paths = [manifest.locate(row) for row in part]
        seen = [next(iter(facts))[:2] if len(facts := known[row]) == 1 else () for row in part]
        question = {"what": "identify", "path": paths[0], "paths": paths, "known": seen}
        asked.append((part, pool.submit(partial(_ask, question))))
    error = ""
    for part, future in asked:
        answer = {"error": error} if error else future.result()
        error = str(answer.get("error", ""))
        yield from zip(part, answer.get("files", [error] * len(part)), strict=True)


def _ask(question: dict[str, Any], decoder: Decoder) -> dict[str, Any]:
    try:
        return decoder.ask(question)
    except DecoderBroken as error:
        return {"error": str(error)}


def _difference(then: tuple[int, int, int], now: list[int]) -> str:
    size, time, ends = now
    if then[0] != size:
        return f"{then[0]:,} bytes then, {size:,} now"
    return "" if then[1] == time or then[2] == ends else "other contents of the same size"


def changed_ids(ids: Keys, compared: Compared) -> NDArray[np.uint64]:
    """Content ids of the clips whose files have changed."""
    return np.unique(ids[np.array(sorted(compared.changed), np.int64)])
