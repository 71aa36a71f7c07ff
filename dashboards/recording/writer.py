"""A feed that records another one: `clusterctl top --record FILE`.

A thread behind a bounded queue writes, so that a slow disk stops the recording and never the view.
It folds the samples into its own state. Every half minute a key holds that state, with the rows of
history since the last one, so that any time can be shown without reading more than its hour.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from dashboards.model.ring_buffer import LAYOUT
from dashboards.model.samples import Feed, NodeDown, NodeSample, Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.recording import codec, file_format
from dashboards.reduce import fold

KEY_S = 30.0
DEEP_KEYS = 20  # every so many keys the run stands in one as well
WAITING = 600  # rounds; ten minutes of a disk that hangs
LIMIT_BYTES = 1 << 30
CLOSE_S = 10.0
APART = ("nodes", "fleet", "run")  # of the state, written in their own way


class Recording:
    """A Feed around a Feed; `note` says why the recording stopped, "" while it goes on."""

    def __init__(
        self, feed: Feed, path: Path, *, interval_s: float = 1.0, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Appends to an existing recording. Raises `UsageError` when that cannot be."""
        self._feed = feed
        self.nodes, self.source = feed.nodes, feed.source
        self.now, self.settled, self.reads = feed.now, feed.settled, feed.reads
        self.note = ""
        try:
            appender = file_format.Appender(path, limit_bytes)
        except (OSError, UsageError) as error:
            raise UsageError(f"--record: {error}", hint=getattr(error, "hint", None)) from None
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
                self._rounds.put_nowait((self.now(), samples))
            except queue.Full:
                self.note = "recording stopped: the disk does not keep up"
        return samples

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
            while (round_ := self._rounds.get()) is not None:
                self._writer.take(*round_)
            self._writer.close()
        except Exception as error:  # noqa: BLE001 - thread boundary: it becomes the note
            self.note = f"recording stopped: {type(error).__name__}: {error}"


class Writer:
    """Rounds of samples into rows; not for several threads."""

    def __init__(
        self, appender: file_format.Appender, nodes: tuple[str, ...], source: str, interval_s: float
    ) -> None:
        self._file = appender
        self._state = initial_state(nodes, now_s=0.0, interval_s=interval_s, source=source)
        self._known: dict[str, tuple[NodeSample, Any]] = {}  # node -> (sample, as it was written)
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
        if self._key_s is None:
            self._state = dataclasses.replace(self._state, now_s=now_s)
            self._key(now_s, begins=True)
        of_run: list[Any] = []
        of_nodes: list[Any] = []
        for sample in samples:
            if isinstance(sample, NodeSample):
                of_nodes.append(self._changes(sample))
            elif isinstance(sample, NodeDown):
                of_nodes.append([sample.node, codec.encode(sample)])
            elif not isinstance(sample, Tick):
                of_run.append(codec.encode(sample))
        self._state = fold(self._state, [*samples, Tick(now_s)])
        if of_run:
            self._file.append(now_s, file_format.RUN, file_format.as_json(of_run))
        self._file.append(now_s, file_format.ROUND, file_format.as_json(of_nodes))
        if self._key_s is not None and 0 <= now_s - self._key_s < KEY_S:
            self._file.commit()
            return
        is_full = self._file.is_full()
        self._key(now_s, begins=is_full)
        if is_full:
            self._file.delete_older_half()

    def _changes(self, sample: NodeSample) -> list[Any]:
        before, plain = self._known.get(sample.node, (None, None))
        new = codec.encode_like(sample, before, plain)
        self._known[sample.node] = (sample, new)
        difference = codec.difference(plain, new)
        return [sample.node, {} if difference is codec.SAME else difference]

    def _key(self, now_s: float, *, begins: bool) -> None:
        """All that is known now."""
        state = self._state
        deep = begins or self._keys % DEEP_KEYS == 0
        about: dict[str, Any] = {"fields": codec.FIELDS, "now_s": now_s, "state": {}}
        for item in dataclasses.fields(state):
            if item.name not in APART:
                with contextlib.suppress(codec.PlainError):  # a state that is read has its default
                    about["state"][item.name] = codec.encode(getattr(state, item.name))
        if deep:
            about["run"] = codec.encode(state.run)
        nodes: dict[str, Any] = {}
        known: dict[str, tuple[NodeSample, Any]] = {}
        for name, node in state.nodes.items():
            parts = {
                item.name: codec.encode(getattr(node, item.name))
                for item in dataclasses.fields(node)
                if item.name not in ("name", "history", "sample")
            }
            if node.sample is not None:
                before, plain = self._known.get(name, (None, None))
                if before is not node.sample:
                    plain = codec.encode_like(node.sample, None, None)
                parts["sample"] = plain
                known[name] = (node.sample, plain)
            nodes[name] = parts
        self._known = known
        history = self._history(state, whole=begins)
        self._file.append(
            now_s,
            file_format.BEGIN if begins else file_format.DEEP if deep else file_format.KEY,
            file_format.as_json(about),
        )
        self._file.append(now_s, file_format.NODES, file_format.as_json(nodes))
        self._file.append(now_s, file_format.HISTORY, history)
        self._file.sync()
        self._key_s, self._keys = now_s, self._keys + 1

    def _history(self, state: State, *, whole: bool) -> bytes:
        """Rows of every ring since the last key: a line that says how many, then the rows."""
        rings = {name: (node.history, node.history_s) for name, node in state.nodes.items()}
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
        return file_format.as_json(about) + b"\n" + b"".join(packed)

    def close(self) -> None:
        self._file.close()
