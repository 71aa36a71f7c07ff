"""Rows of a recording as texts, written anew, changed and damaged."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from dashboards.recording.file_format import Appender, Unpacker

Row = tuple[float, str, bytes]


def read_rows(path: Path) -> list[Row]:
    unpacker = Unpacker()
    with contextlib.closing(sqlite3.connect(path)) as db:
        query = "SELECT time_s, kind, payload FROM samples ORDER BY id"
        return [(at_s, kind, unpacker.unpack(kind, data)) for at_s, kind, data in db.execute(query)]


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    path.unlink(missing_ok=True)
    appender = Appender(path, 1 << 40)
    for row in rows:
        appender.append(*row)
    appender.close()
    return path


def change_row(path: Path, kind: str, number: int, statement: str) -> None:
    """Execute the statement with the id of that row of its kind, counted from 0."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        query = "SELECT id FROM samples WHERE kind = ? ORDER BY id LIMIT 1 OFFSET ?"
        db.execute(statement, db.execute(query, (kind, number)).fetchone())


def damage_row(path: Path, kind: str, number: int) -> None:
    """Its payload with one byte changed."""
    damaged = "CAST(substr(payload, 1, 9) || X'AA' || substr(payload, 11) AS BLOB)"
    change_row(path, kind, number, "UPDATE samples SET payload = " + damaged + " WHERE id = ?")  # noqa: S608 - no input
