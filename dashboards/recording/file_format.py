"""The file of a recording: an SQLite database with one table of samples.

Rows are only appended, one transaction a round. A key is three rows: one of `KEYS` with the state
at that time, `NODES`, `HISTORY`. Each round after it is one row `ROUND` with what changed on the
nodes, behind a row `RUN` where the run reported something. The payload is a CRC-32 of the text and
a piece of a zlib stream, which restarts at each key: a round is packed with those before it as
context.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.errors import UsageError
from clusterctl.payload.files.ownership import open_own
from dashboards.model import units
from trainer.runlog.json_file import decoded

BEGIN, DEEP, KEY = KEYS = ("begin", "deep", "key")
"""BEGIN and DEEP hold the run as well; a session begins at BEGIN."""
NODES, HISTORY, RUN, ROUND = "nodes", "history", "run", "round"
# Of a text, unpacked: ten times what 1,000 nodes of 8 GPUs report, and four times their hour of
# history. A small file must not unpack to all of the memory.
MAX_BYTES = dict.fromkeys((*KEYS, NODES, RUN, ROUND), 64 << 20) | {HISTORY: 256 << 20}
MAX_PARTS = 4 << 20  # lists and objects of one text; each costs 60 bytes of memory and more
LATEST_S = 1e11  # year 5138
LEVEL = 6
PAGE_BYTES = 2048  # larger pages leave more of themselves empty: 4096 takes 30 % more space
LEAST_ROW_BYTES = 16

SQLITE_MAGIC = b"SQLite format 3\0"
BESIDE = ("-wal", "-shm", "-journal")  # files of SQLite's own
OLD_MAGIC = b"clusterctl recording 1\n"
APPLICATION_ID = 0x63746C72  # "ctlr"
SCHEMA = {
    "samples": "CREATE TABLE samples"
    " (id INTEGER PRIMARY KEY, time_s REAL, kind TEXT, payload BLOB)",
    "by_time": "CREATE INDEX by_time ON samples (time_s, kind)",
}


class Row(NamedTuple):
    """A row without its payload."""

    id: int
    time_s: float
    kind: str


def check_is_recording(path: Path) -> None:
    """Raises `OSError` when the file cannot be read, `UsageError` for anything but a recording."""
    with path.open("rb") as file:
        head = file.read(100)
    if head.startswith(OLD_MAGIC):
        raise UsageError(
            f"{path} is a recording of clusterctl 0.1",
            hint="convert it with clusterctl 0.2.0: python -m dashboards.recording.convert OLD NEW",
        )
    if not head.startswith(SQLITE_MAGIC) or int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise UsageError(f"{path} is not a recording of clusterctl top")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=1.0, isolation_level=None, check_same_thread=False
    )


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """A view or a trigger of a file from elsewhere could run anything that SQL can."""
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    found = db.execute("SELECT name, sql FROM sqlite_master LIMIT 3").fetchall()
    if dict(found) != SCHEMA or len(found) != len(SCHEMA):
        raise UsageError(f"{path} is not a recording of clusterctl top")


def open_read_only(path: Path) -> sqlite3.Connection:
    """Raises `OSError`, `UsageError` as `check_is_recording`."""
    check_is_recording(path)
    for ending in BESIDE:  # SQLite opens them, and would wait for the writer of a pipe
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(f"{path}{ending}").st_mode):
                raise UsageError(f"{path}{ending} is no plain file, so {path.name} is not read")
    try:
        db = _connect(path, "ro")
        _check_schema(db, path)
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return db


def list_rows(db: sqlite3.Connection, size: int) -> tuple[list[Row], int]:
    """Rows in the order of writing, from the index alone, and how many places are damaged.

    `size` is the file's: pages that point at each other in a circle must not give rows without end.
    """
    query = "SELECT id, time_s, kind FROM samples INDEXED BY by_time ORDER BY time_s LIMIT ?"
    found: list[Row] = []
    damaged = 0
    try:
        for id_, time_s, kind in db.execute(query, (size // LEAST_ROW_BYTES,)):
            good = type(time_s) is float and 0.0 <= time_s <= LATEST_S and kind in MAX_BYTES
            if good and type(id_) is int:
                found.append(Row(id_, time_s, kind))
            else:
                damaged += 1
    except sqlite3.Error:
        damaged += 1
    found.sort()
    rows = list({row.id: row for row in reversed(found)}.values())[::-1]
    if rows:
        damaged += rows[-1].id - rows[0].id + 1 != len(rows)
    return rows, damaged


def stretches(rows: Iterable[Row]) -> list[tuple[int, float]]:
    """For each key (stretch, its end): within a stretch of the file time does not go back.

    It does where a session followed another one after the clock was set back.
    """
    ends = [-1.0]
    of_keys: list[int] = []
    for row in rows:
        if row.kind in KEYS:
            if row.time_s < ends[-1]:
                ends.append(-1.0)
            of_keys.append(len(ends) - 1)
        ends[-1] = max(ends[-1], row.time_s)
    return [(stretch, ends[stretch]) for stretch in of_keys]


def as_json(value: Any) -> bytes:
    """The text of a row."""
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(text: bytes) -> Any:
    """What `as_json` made a text of. Raises `ValueError`."""
    if text.count(b"[") + text.count(b"{") > MAX_PARTS:
        raise ValueError("a text of too many parts")
    try:
        return decoded(text)
    except RecursionError:
        raise ValueError("a text that is nested too deeply") from None


class Unpacker:
    """Texts of the rows after one key, which are given in order."""

    def __init__(self) -> None:
        self._streams: defaultdict[str, Any] = defaultdict(zlib.decompressobj)

    def unpack(self, kind: str, payload: Any) -> bytes:
        """Raises `ValueError` where it is damaged."""
        if kind in KEYS:
            self._streams.clear()
        if type(payload) is bytes and len(payload) > 4:
            with contextlib.suppress(zlib.error):
                text: bytes = self._streams[kind].decompress(payload[4:], MAX_BYTES[kind])
                if zlib.crc32(text) == int.from_bytes(payload[:4], "big"):
                    return text
        raise ValueError("a damaged row")


class Appender:
    """Appends rows. Above `limit_bytes` the older half is deleted."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Appends to an existing recording.

        Raises `OSError`; `UsageError` for a file that is something else or is being written.
        """
        self.path, self._limit = path, limit_bytes
        self._packers: defaultdict[str, Any] = defaultdict(lambda: zlib.compressobj(LEVEL))
        os.close(open_own(str(path), os.O_RDWR | os.O_CREAT))
        for ending in BESIDE:  # SQLite would write into those of other users
            if os.path.lexists(f"{path}{ending}"):
                os.close(open_own(f"{path}{ending}", os.O_RDWR))
        if path.stat().st_size:
            check_is_recording(path)
        self._db = _connect(path, "rw")
        try:
            self._open()
        except UsageError:
            self._db.close()
            raise
        except sqlite3.Error as error:
            self._db.close()
            is_locked = "locked" in str(error)
            why = "is already being recorded into" if is_locked else f"cannot be written: {error}"
            raise UsageError(f"{path} {why}") from None

    def _open(self) -> None:
        execute = self._db.execute
        execute(f"PRAGMA page_size = {PAGE_BYTES}")
        execute("BEGIN IMMEDIATE")
        if not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in SCHEMA.values():
                execute(statement)
        execute("COMMIT")
        _check_schema(self._db, self.path)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA wal_autocheckpoint = 0")  # `sync` does it
        execute("BEGIN IMMEDIATE")  # a transaction is always open: no other process can write

    def append(self, time_s: float, kind: str, text: bytes) -> None:
        """One row. Raises `ValueError` for a text that no reader would take, `sqlite3.Error`."""
        if len(text) > MAX_BYTES[kind]:
            raise ValueError(f"a round of {units.size(len(text))} is too long for a recording")
        if kind in KEYS:
            self._packers.clear()
        packer = self._packers[kind]
        packed = packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)
        self.insert(time_s, kind, zlib.crc32(text).to_bytes(4, "big") + packed)

    def insert(self, time_s: float, kind: str, payload: bytes) -> None:
        self._db.execute(
            "INSERT INTO samples (time_s, kind, payload) VALUES (?, ?, ?)", (time_s, kind, payload)
        )

    def commit(self) -> None:
        """What is written survives the end of this process."""
        self._db.execute("COMMIT")
        self._db.execute("BEGIN IMMEDIATE")

    def sync(self) -> None:
        """And a loss of power. Raises `sqlite3.Error`: the disk is full."""
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._db.execute("BEGIN IMMEDIATE")

    def is_full(self) -> bool:
        query = "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
        return bool(self._db.execute(query).fetchone()[0] * PAGE_BYTES > self._limit)

    def delete_older_half(self) -> None:
        """Up to a key that holds everything."""
        self._db.execute(
            "DELETE FROM samples WHERE id < (SELECT id FROM samples WHERE kind IN (?, ?)"
            " AND id > (SELECT (min(id) + max(id)) / 2 FROM samples) ORDER BY id LIMIT 1)",
            (BEGIN, DEEP),
        )

    def close(self) -> None:
        """Leave one plain file, which can be read in a folder without write access."""
        self._db.execute("COMMIT")
        with contextlib.suppress(sqlite3.OperationalError):  # another process reads it
            self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()
