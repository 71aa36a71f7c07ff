"""A feed that writes down what another one says: `clusterctl top --record FILE`.

The writing happens in a thread of its own behind a bounded queue, so that a slow disk stops the
recording and never the view. The thread folds the samples into a state of its own: every half minute
a key block holds all that is known then, with the rows of history that came since the last one, so
that any time can be shown without reading what lies before its hour.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
import time
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from dashboards.feeds.base import Feed
from dashboards.model.history_columns import LAYOUT
from dashboards.model.ring_buffer import Ring
from dashboards.model.samples import NodeDown, NodeSample, Sample, Tick
from dashboards.model.state import State, fold, initial_state
from dashboards.recording import codec as plain
from dashboards.recording.file_format import DEEP, KEY, ROUNDS, Appender, pack

KEY_S = 30.0
FLUSH_S = 5.0  # what a crash may take
DEEP_KEYS = 20  # every so many keys the run stands in one as well
WAITING = 600  # rounds; ten minutes of a disk that hangs
LIMIT_BYTES = 1 << 30
CLOSE_S = 10.0
APART = ("nodes", "fleet", "run")  # of the state, written in their own way


class Recording:
    """A Feed around a Feed; `note` says what became of the recording, "" while all is well."""

    def __init__(
        self, feed: Feed, path: Path, *, interval_s: float = 1.0, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Appends to a recording that is there. Raises `UsageError` when that cannot be."""
        self._feed = feed
        self.nodes, self.source = feed.nodes, feed.source
        self.note = ""
        try:
            appender = Appender(path, limit_bytes)
        except (OSError, ValueError) as error:
            raise UsageError(f"--record: {error}") from None
        self._writer = Writer(appender, feed.nodes, feed.source, interval_s)
        self._rounds: queue.Queue[tuple[float, list[Sample]] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write_forever, name="record", daemon=True)

    def start(self) -> None:
        self._feed.start()
        self._thread.start()

    def drain(self) -> list[Sample]:
        samples = self._feed.drain()
        if not self.note:
            try:
                self._rounds.put_nowait((self._feed.now(), samples))
            except queue.Full:
                self.note = "recording stopped: the disk does not keep up"
        return samples

    def now(self) -> float:
        return self._feed.now()

    def settled(self) -> bool:
        return self._feed.settled()

    def close(self) -> None:
        self._feed.close()
        deadline = time.monotonic() + CLOSE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._rounds.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _write_forever(self) -> None:
        try:
            while (said := self._rounds.get()) is not None:
                self._writer.take(*said)
            self._writer.close()
        except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the note
            self.note = f"recording stopped: {type(error).__name__}: {error}"


class Writer:
    """Rounds of samples into blocks; not for several threads."""

    def __init__(
        self, appender: Appender, nodes: tuple[str, ...], source: str, interval_s: float
    ) -> None:
        self._file = appender
        self._begin = (nodes, source, interval_s)
        self._state: State | None = None
        self._known: dict[str, tuple[NodeSample, Any]] = {}  # node -> (sample, as it was written)
        self._rounds: list[tuple[float, list[Any], list[Any]]] = []  # time, of the run, of nodes
        self._key_s: float | None = None
        self._keys = 0
        self._rows: dict[str, float | None] = {}  # node -> time of its last row in a key

    def take(self, now_s: float, samples: list[Sample]) -> None:
        """One drain of a feed, and the time then."""
        begin = 0
        for index, sample in enumerate(samples):
            if isinstance(sample, Tick):
                self._round(sample.now_s, samples[begin:index])
                begin = index + 1
        self._round(now_s, samples[begin:])

    def _round(self, now_s: float, samples: list[Sample]) -> None:
        if self._state is None:
            nodes, source, interval_s = self._begin
            self._state = initial_state(nodes, now_s=now_s, interval_s=interval_s, source=source)
            self._key(now_s, begins=True)
        of_run: list[Any] = []
        of_nodes: list[Any] = []
        for sample in samples:
            if isinstance(sample, NodeSample):
                of_nodes.append(self._changes(sample))
            elif isinstance(sample, NodeDown):
                of_nodes.append([sample.node, plain.encode(sample)])
            elif not isinstance(sample, Tick):
                of_run.append(plain.encode(sample))
        self._state = fold(self._state, [*samples, Tick(now_s)])
        self._rounds.append((now_s, of_run, of_nodes))
        if self._key_s is not None and not 0 <= now_s - self._key_s < KEY_S:
            self._flush()
            begins = self._file.is_long()
            if begins:
                self._file.rotate()
            self._key(now_s, begins=begins)
        elif now_s - self._rounds[0][0] >= FLUSH_S:
            self._flush()

    def _changes(self, sample: NodeSample) -> list[Any]:
        before = self._known.get(sample.node)
        if before is None:
            new = plain.encode_like(sample, None, None)
            self._known[sample.node] = (sample, new)
            return [sample.node, new]
        new = plain.encode_like(sample, *before)
        self._known[sample.node] = (sample, new)
        said = plain.difference(before[1], new)
        return [sample.node, {} if said is plain.SAME else said]

    def _flush(self) -> None:
        if not self._rounds:
            return
        rounds, self._rounds = self._rounds, []
        times = [now_s for now_s, _, _ in rounds]
        run = [[now_s, of_run] for now_s, of_run, _ in rounds]
        nodes = [of_nodes for _, _, of_nodes in rounds]
        self._file.append(pack(ROUNDS, [_json(run), _json(nodes), b""], times[0], times[-1]))

    def _key(self, now_s: float, *, begins: bool) -> None:
        """All that is known now; what was known of samples is forgotten, the key has it."""
        state = self._state
        assert state is not None
        deep = begins or self._keys % DEEP_KEYS == 0
        about: dict[str, Any] = {"fields": plain.FIELDS, "now_s": now_s, "begins": begins}
        about["state"] = {}
        for item in dataclasses.fields(state):
            if item.name not in APART:
                try:
                    about["state"][item.name] = plain.encode(getattr(state, item.name))
                except plain.PlainError:
                    continue  # it begins anew where it is read
        if deep:
            about["run"] = plain.encode(state.run)
        nodes: dict[str, Any] = {}
        known: dict[str, tuple[NodeSample, Any]] = {}
        for name, node in state.nodes.items():
            parts = {
                item.name: plain.encode(getattr(node, item.name))
                for item in dataclasses.fields(node)
                if item.name not in ("name", "history", "sample")
            }
            if node.sample is not None:
                # Where it was written the same way before: one text, one object.
                before = self._known.get(name)
                same = before is not None and before[0] is node.sample
                parts["sample"] = (
                    before[1] if same and before else plain.encode_like(node.sample, None, None)
                )
                known[name] = (node.sample, parts["sample"])
            nodes[name] = parts
        self._known = known
        history = self._history(state, whole=begins)
        kind = DEEP if deep else KEY
        self._file.append(pack(kind, [_json(about), _json(nodes), history], now_s, now_s))
        self._file.sync()
        self._key_s, self._keys = now_s, self._keys + 1

    def _history(self, state: State, *, whole: bool) -> bytes:
        """Rows of every ring since the last key: a line that says how many, then the rows."""
        whole = whole or not self._rows
        rings: dict[str, tuple[Ring, float | None]] = {
            name: (node.history, node.history_s) for name, node in state.nodes.items()
        }
        rings[""] = (state.fleet, state.fleet_s)
        rows: dict[str, list[int]] = {}
        packed = []
        for name, (ring, last_s) in rings.items():
            before = self._rows.get(name)
            count = len(ring)
            if not whole and before is not None and last_s is not None:
                count = min(count, round((last_s - before) / state.history_step_s))
            self._rows[name] = last_s
            rows[name] = [ring.width, count]
            packed.append(ring.newest_bytes(count))
        about = {"whole": whole, "rows": rows, "columns": LAYOUT}
        return _json(about) + b"\n" + b"".join(packed)

    def close(self) -> None:
        """What came since the last block, and the file."""
        try:
            self._flush()
            self._file.sync()
        finally:
            self._file.close()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
