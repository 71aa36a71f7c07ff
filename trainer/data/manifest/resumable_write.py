"""A manifest that is made in pieces: killed at any moment, the same command goes on where it was.

The pieces and a state that says where reading goes on are in a hidden folder `.NAME.work`. A piece
counts once the state names it; both are written aside, synced and renamed. At the end one rename
gives the joined pieces their name. Row groups depend on the rows alone, so an interrupted run gives
the same bytes.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.table_io import ArrowBatch, Batch, cell
from trainer.errors import TrainerError
from trainer.runlog.atomic_file import sync
from trainer.runlog.json_file import read_object

PIECE_ROWS = 65_536  # rows in a piece: 60 MB of captions at most, and 0.1 s to do again
PIECE_S = 10.0  # seconds of work that a kill may cost where a row is dear
GROUP_ROWS = 65_536  # of a parquet file
SCHEMA = 1


class Format(Protocol):
    """How rows are kept in pieces, and how pieces become a file."""

    suffix: str

    def write_piece(self, path: Path, batches: Sequence[Batch]) -> list[WrongRow]: ...

    def join(self, pieces: Sequence[Path], out: Path) -> None: ...


class CsvFormat:
    """Pieces are csv without a header."""

    suffix = ".csv"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def write_piece(self, path: Path, batches: Sequence[Batch]) -> list[WrongRow]:
        how: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
        with path.open("w", buffering=1 << 20, **how) as file:
            writer = csv.writer(file)
            for batch in batches:
                chosen = batch.select(self.names)
                if isinstance(chosen, ArrowBatch):
                    columns = [
                        [cell(value) for value in chosen.column(name)] for name in self.names
                    ]
                    writer.writerows(zip(*columns, strict=True))
                else:
                    writer.writerows(chosen.rows)  # type: ignore[attr-defined]
        return []

    def join(self, pieces: Sequence[Path], out: Path) -> None:
        with out.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerow(self.names)
        with out.open("ab") as whole:
            for piece in pieces:
                with piece.open("rb") as file:
                    shutil.copyfileobj(file, whole, 1 << 20)


class ParquetFormat:
    """Pieces are Arrow files; the parquet file's row groups are cut anew from all of them."""

    suffix = ".arrow"

    def __init__(self, schema: Any, group_rows: int = GROUP_ROWS) -> None:
        self.schema, self.group_rows = schema, group_rows

    def write_piece(self, path: Path, batches: Sequence[Batch]) -> list[WrongRow]:
        import pyarrow as pa

        from trainer.data.manifest.arrow import to_schema

        wrong: list[WrongRow] = []
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, self.schema) as writer:
            for batch in batches:
                data, refused = to_schema(batch, self.schema)
                wrong += refused
                writer.write_batch(data)
        return wrong

    def join(self, pieces: Sequence[Path], out: Path) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(out, self.schema) as writer:
            for table in regroup(self.batches(pieces), self.schema, self.group_rows):
                writer.write_table(table, row_group_size=self.group_rows)

    def batches(self, pieces: Sequence[Path]) -> Iterator[Any]:
        import pyarrow as pa

        for piece in pieces:
            with pa.OSFile(str(piece)) as source, pa.ipc.open_file(source) as file:
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)


def regroup(batches: Iterator[Any], schema: Any, rows: int) -> Iterator[Any]:
    """All rows as tables of `rows` rows, the last one shorter."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= rows:
            head = batch.slice(0, rows - count)
            yield pa.Table.from_batches([*held, head], schema).combine_chunks()
            batch, held, count = batch.slice(head.num_rows), [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held, schema).combine_chunks()


class Job:
    """One file in the making. A context manager; leaving it early keeps what is done.

    `key` says what is made from what: a folder left by another key is thrown away. `state` is the
    caller's own, plain data, kept with every piece. Raises ManifestError when the file is there
    already (without `force`) or another process is making it.
    """

    def __init__(self, out: Path, key: Mapping[str, Any], *, force: bool = False) -> None:
        self.out = out
        self.folder = out.with_name(f".{out.name}.work")
        self._key = json.loads(json.dumps({"schema": SCHEMA, **key}, default=str))
        self._force = force
        self._format: Format | None = None
        self._held: list[Batch] = []
        self._held_rows = 0
        self._since = time.monotonic()
        self._lock = -1
        self._fresh: dict[str, Any] = {
            "pieces": 0,
            "rows": 0,
            "position": None,
            "wrong": [],
            "state": {},
        }
        self._kept = self._fresh
        self.whole = self.folder / f"whole{out.suffix}"  # becomes `out`
        self._changed = False  # since the last piece
        self.finished = False  # nothing is left to do but `clear`

    def __enter__(self) -> Job:
        kept = _read_json(self.folder / "state.json")
        if kept is not None and kept.get("key") == self._key and kept.get("whole"):
            # killed between its last rename and the end
            self.finished = self.out.exists() and not self.whole.exists()
        if self.out.exists() and not self._force and not self.finished:
            raise ManifestError(
                f"{self.out} already exists", hint="choose another name, or --force"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ManifestError(f"{self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ManifestError(f"{self.out} is being made by another process") from None
        kept = _read_json(self.folder / "state.json")
        if kept is not None and kept.get("key") == self._key:
            self._kept = kept
        else:
            self._forget()
        self._kept["key"] = self._key
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A limit or lost nodes stop between two pieces of work. A Ctrl-C may come anywhere,
            # as a kill does: a few seconds are done again.
            if kind is not None and issubclass(kind, TrainerError):
                self.flush()
        finally:
            if self._lock >= 0:
                os.close(self._lock)

    def restart(self) -> None:
        """Throw away what an earlier process has done."""
        self._forget()
        self._kept["key"] = self._key

    def _forget(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._kept = {**self._fresh, "wrong": [], "state": {}}

    @property
    def resumed(self) -> bool:
        """Whether an earlier process has done a part."""
        return self._kept["position"] is not None

    @property
    def position(self) -> Any:
        """Where reading goes on; None at the beginning."""
        return self._kept["position"]

    @property
    def rows(self) -> int:
        """Rows given so far."""
        return int(self._kept["rows"])

    @property
    def wrong(self) -> list[WrongRow]:
        """Rows left out so far, in the order they were found."""
        return [WrongRow(line, reason) for line, reason in self._kept["wrong"]]

    @property
    def left_out(self) -> int:
        """Number of rows left out so far."""
        return len(self._kept["wrong"])

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._kept["state"]
        return found

    def begin(self, layout: Format) -> None:
        """Say how rows are kept, before the first `add`. Begins anew when a piece is gone."""
        self._format = layout
        if not all(self._piece(number).is_file() for number in range(self._kept["pieces"])):
            self.restart()

    def add(self, batch: Batch, position: Any, wrong: Sequence[WrongRow] = ()) -> None:
        """Give rows, and the place to go on from once they are safe."""
        if len(batch):
            self._held.append(batch)
            self._held_rows += len(batch)
        self._kept["rows"] += len(batch)
        self._kept["wrong"] += [(row.line, row.reason) for row in wrong]
        self._kept["position"] = position
        self._changed = True
        if self._held_rows >= PIECE_ROWS or time.monotonic() - self._since > PIECE_S:
            self.flush()

    def flush(self) -> None:
        """Make everything given so far safe."""
        if not self._changed:
            return
        assert self._format is not None
        if self._held:
            piece = self._piece(self._kept["pieces"])
            fresh = piece.with_suffix(".new")
            refused = self._format.write_piece(fresh, self._held)
            sync(fresh)
            fresh.replace(piece)
            self._kept["pieces"] += 1
            self._kept["rows"] -= len(refused)
            self._kept["wrong"] += [(row.line, row.reason) for row in refused]
            self._held, self._held_rows = [], 0
        self.save_state()
        self._since, self._changed = time.monotonic(), False

    def save_state(self) -> None:
        """Make `state` safe although no piece is due."""
        path = self.folder / "state.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._kept), encoding="utf-8")
        sync(fresh)
        fresh.replace(path)

    def finish(self) -> None:
        """Put the pieces together under the final name and remove the folder."""
        self.flush()
        assert self._format is not None
        pieces = [self._piece(number) for number in range(self._kept["pieces"])]
        if self.whole.is_dir():
            shutil.rmtree(self.whole)  # of a run that was killed while it put them together
        self._format.join(pieces, self.whole)
        self.publish()

    def publish(self) -> None:
        """Give `whole` its final name and remove the folder."""
        sync(self.whole)
        self._kept["whole"] = True
        self.save_state()
        if self.out.is_dir():  # a folder cannot be renamed over one
            self.out.rename(self.folder / "before")
        self.whole.replace(self.out)
        sync(self.out.parent)
        self.clear()

    def clear(self) -> None:
        """Remove the folder, its state last."""
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "state.json":
                entry.unlink()
        shutil.rmtree(self.folder)

    def _piece(self, number: int) -> Path:
        assert self._format is not None
        return self.folder / f"{number:08d}{self._format.suffix}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return None


def identity(source: Path) -> dict[str, Any]:
    """What tells one state of a file from another. Raises ManifestError when it is not there."""
    try:
        facts = source.stat()
    except OSError as error:
        raise ManifestError(f"{source}: {error.strerror}") from None
    return {"path": str(source.resolve()), "bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}
