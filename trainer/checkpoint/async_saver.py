"""Saves while training continues: threads copy a rank's state, write it and hash it.

A save starts on all ranks at one step. The next step's forward and backward pass change nothing of
the state; before it updates the weights the step waits for the copy (`hold`). When the numbers that
ranks exchange every step say that all parts are written, rank 0 writes the averaged weights, seals
the checkpoint and renames it. A failure on any rank is raised on all at the same step. Only the
threads touch files, only the loop's thread talks to other ranks. Why not DCP's async_save:
docs/decisions/0005-sealed-checkpoints.md (a step stalls 0.006 s for 968 MB, tests/bench/save.py).
"""

from __future__ import annotations

import enum
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.staging_buffer import PendingCopy, StagingBuffer, use_device
from trainer.config.load import Config
from trainer.engine.base import STATE, Engine, EngineState
from trainer.engine.shards import write
from trainer.errors import CheckpointError, TrainerError
from trainer.runlog import units
from trainer.runlog.checkpoint_name import checkpoint_name
from trainer.runlog.retention import OVERHEAD_BYTES
from trainer.runlog.run_dir import require_newest
from trainer.weights.checkpoints import EMA, MODEL, OPTIMIZER

_POLL_S = 0.2  # how often `finish` asks the other ranks
LIMIT_S = 1800.0  # a filesystem that hangs ends the run, also when all else is done


class _State(enum.IntEnum):
    """Of a rank's save; goes through the exchange of a step as a float."""

    IDLE, WORKING, WRITTEN, SEALED, FAILED = range(5)


Documents = Callable[[], Mapping[str, Any]]  # called on a thread


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is complete."""

    path: Path
    step: int
    seconds: float  # from the first file to the rename
    stall_s: float  # of them, what training waited
    notes: tuple[str, ...] = ()  # older ones that cannot be deleted, each reported once


@dataclass
class _Save:
    """The one that is under way, as this rank sees it."""

    step: int
    final: Path  # its folder
    part: Path  # the folder that it is made in
    documents: Documents
    shapes: Mapping[str, torch.Size]
    weights: dict[str, Tensor]
    began: float
    stall_s: float = 0.0
    state: _State = _State.WORKING
    is_sealing: bool = False
    entries: checkpoint.Entries | None = None  # of this rank's files
    failure: str | None = None
    thread: threading.Thread | None = None
    copied: threading.Event = field(default_factory=threading.Event)  # or failed to
    notes: list[str] = field(default_factory=list)

    def reach(self, state: _State) -> None:
        if self.state != _State.FAILED:  # which a late thread does not change
            self.state = state

    def fail(self, why: str) -> None:
        self.failure, self.state = why, _State.FAILED
        self.copied.set()

    def check_thread(self) -> None:
        """Fail if the thread ended silently (no memory even for its first call)."""
        ended = self.thread is not None and not self.thread.is_alive()
        if ended and self.state == _State.WORKING:
            self.fail("the thread that writes it has ended")


class Saver:
    """Writes a run's checkpoints. All its methods but `status` are collective."""

    def __init__(self, run_dir: Path, engine: Engine, config: Config) -> None:
        self._run_dir, self._engine, self._config = run_dir, engine, config
        # While others stand in a collective.
        self._wait_s = min(config.process_group_timeout_s / 2, LIMIT_S)
        self._before = checkpoint.serial_before(config.load) if engine.rank == 0 else 0
        self._noted: set[str] = set()
        self._save: _Save | None = None
        self._buffer = StagingBuffer(engine.device)

    def prepare(self) -> None:
        """Get memory for copies of weights and state on a thread, now."""
        engine, weights = self._engine, self._engine.weights_to_save() or {}
        if not self._config.async_io or not (engine.is_sharded or engine.rank == 0):
            return
        masters = engine.master_params()
        sizes: dict[str, int] = {}
        for name, master in masters:
            keys = [f"state/{name}/{kind}" for kind in ("master", *STATE)] + [f"average/{name}"]
            sizes |= dict.fromkeys(keys, master.nbytes)
        sizes |= {f"weights/{k}": v.nbytes for k, v in weights.items() if not v.is_meta}
        self._buffer.prepare(sizes)

    @property
    def status(self) -> float:
        """This rank's number for `advance`; goes into what ranks exchange every step."""
        if self._save is None:
            return float(_State.IDLE)
        self._save.check_thread()
        return float(self._save.state)

    def save(
        self,
        epoch: int,
        step: int,
        average: Mapping[str, Tensor],
        documents: Documents,
        *,
        background: bool = True,
    ) -> list[Saved]:
        """Begin a checkpoint; returns those that were complete by now. Raises CheckpointError.

        The engine's state and `average`, this rank's parts, may not change before `hold` has
        returned. `background=False` needs no copy: it waits until all is written.
        """
        done = self.finish()
        began = time.perf_counter()
        state, weights = self._engine.state(), dict(self._engine.weights_to_save() or {})
        final = self._run_dir / checkpoint_name(epoch, step)
        part = checkpoint.part_of(final)
        parts, average = (state.tensors, average) if state else ({}, {})
        # The average twice: for a while the whole of it lies beside its parts.
        stored = (*parts.values(), *average.values(), *average.values(), *weights.values())
        own = float(sum(tensor.nbytes for tensor in stored))
        need = int(sum(row[0] for row in self._engine.gather([own]))) + OVERHEAD_BYTES
        try:
            notes = self._engine.run_on_rank0(lambda: checkpoint.begin(part, need))
        except TrainerError as error:
            if self._engine.rank == 0:
                shutil.rmtree(part, ignore_errors=True)  # frees a full disk
            raise checkpoint.refusal([f"rank 0: {error}"]) from None
        shapes = state.shapes if state else {}
        save = _Save(step, final, part, documents, shapes, weights, began, notes=notes)
        tensors = {f"state/{key}": value for key, value in parts.items()}
        tensors |= {f"average/{key}": value.reshape(-1) for key, value in average.items()}
        tensors |= {f"weights/{k}": v for k, v in weights.items() if not v.is_meta}
        background = background and self._config.async_io
        ready = PendingCopy(tensors)

        def work() -> None:
            held = self._buffer.copy(ready) if background else tensors
            save.copied.set()
            self._write_part(save, state, held)

        self._save = save
        self._start(save, work)
        save.stall_s = time.perf_counter() - began
        if not background:
            done += self.finish()
        return done

    @property
    def is_copying(self) -> bool:
        """Whether the state must not change yet."""
        return self._save is not None and not self._save.copied.is_set()

    def hold(self) -> None:
        """Wait, up to the limit, until the state may change: before each update. Not collective."""
        save, began = self._save, time.perf_counter()
        if save is None:
            return
        while not save.copied.wait(_POLL_S):
            save.check_thread()
            if time.perf_counter() - began > self._wait_s:
                save.fail(f"{save.final.name} was not copied in {units.duration(self._wait_s)}")
        save.stall_s += time.perf_counter() - began

    def advance(self, statuses: Iterable[float]) -> list[Saved]:
        """The checkpoint that became complete by every rank's `status` of one moment, if one did.

        Raises `CheckpointError` on all ranks when one of them failed; nothing half is left.
        """
        save, states = self._save, [int(status) for status in statuses]
        if save is None:
            return []
        if _State.FAILED in states:
            failures = self._engine.gather_errors(save.failure)
            self._abandon(save)
            raise checkpoint.refusal(failures)
        if not save.is_sealing and min(states) >= _State.WRITTEN:
            save.is_sealing = True
            every = self._engine.gather_objects(save.entries or {})
            if self._engine.rank == 0:
                files = {name: entry for entries in every for name, entry in entries.items()}
                save.state = _State.WORKING
                self._start(save, lambda: self._seal(save, files))
        elif save.is_sealing and states[0] == _State.SEALED:
            self._save = None
            seconds = time.perf_counter() - save.began
            notes = tuple(note for note in dict.fromkeys(save.notes) if note not in self._noted)
            self._noted.update(notes)
            return [Saved(save.final, save.step, seconds, save.stall_s, notes)]
        return []

    def finish(self) -> list[Saved]:
        """Wait for the checkpoint under way, if there is one, and return it."""
        began, done = time.perf_counter(), []
        while (save := self._save) is not None:
            is_late = time.perf_counter() - began >= LIMIT_S
            text = f"{save.final.name} is not written after {units.duration(LIMIT_S)}"
            late = self._engine.gather_errors(text if is_late else None)
            if late:
                self._save = None
                raise checkpoint.refusal(late)
            if save.thread is not None:
                save.thread.join(_POLL_S)
            done += self.advance(row[0] for row in self._engine.gather([self.status]))
        waited = time.perf_counter() - began
        return [replace(saved, stall_s=saved.stall_s + waited) for saved in done]

    # --- on threads ---

    def _start(self, save: _Save, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                use_device(self._engine.device)
                work()
            except CheckpointError as error:
                save.fail(str(error))
            except Exception as error:  # noqa: BLE001 - thread boundary, see `advance`
                save.fail(f"{type(error).__name__}: {error}")
            finally:
                save.copied.set()

        # No daemon: the interpreter waits for what is being written.
        save.thread = threading.Thread(target=guarded, name="checkpoint")
        try:
            save.thread.start()
        except RuntimeError as error:  # no thread can be started
            save.fail(str(error))
            save.thread = None

    def _write_part(
        self, save: _Save, state: EngineState | None, held: Mapping[str, Tensor]
    ) -> None:
        def of(kind: str) -> dict[str, Tensor]:
            return {k.removeprefix(kind): v for k, v in held.items() if k.startswith(kind)}

        written = []
        if state is not None:
            place = (state.rank, state.world)
            written.append(write(save.part / OPTIMIZER, *place, of("state/"), state.facts))
            write(save.part / checkpoint.AVERAGE_PARTS, *place, of("average/"))
        save.weights |= of("weights/")
        save.entries = checkpoint.entries(save.part, written)
        save.reach(_State.WRITTEN)

    def _seal(self, save: _Save, files: checkpoint.Entries) -> None:
        part, parts = save.part, save.part / checkpoint.AVERAGE_PARTS
        average = {name: torch.empty(shape, device="meta") for name, shape in save.shapes.items()}
        written = checkpoint.write_weights(part / EMA, average, parts)
        masters = part / OPTIMIZER
        written += checkpoint.write_weights(part / MODEL, save.weights, masters, "/master")
        # No file of them is open: NFS would keep it under another name, and the folder with it.
        shutil.rmtree(parts)
        written += checkpoint.write_documents(part, save.documents())
        files |= checkpoint.entries(part, written)
        require_newest(save.final.parent)
        save.notes += checkpoint.seal(part, save.final, files, self._before)
        keep, every = self._config.keep_checkpoints, self._config.keep_every
        save.notes += checkpoint.forget_old(save.final, keep, every)
        save.reach(_State.SEALED)

    def _abandon(self, save: _Save) -> None:
        """Free the disk (collective); no thread writes any more when the folder goes."""
        if save.thread is not None:
            save.thread.join(self._wait_s)
        writing = save.thread is not None and save.thread.is_alive()  # in a filesystem that hangs
        any_writing = self._engine.gather_errors("it is still writing" if writing else None)
        if not any_writing and self._engine.rank == 0:
            shutil.rmtree(save.part, ignore_errors=True)
        self._save = None
