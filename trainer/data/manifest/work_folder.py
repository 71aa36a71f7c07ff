"""The hidden folder `.NAME.work` in which a verb makes its result until it is complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.data.manifest.manifest import ManifestError
from trainer.runlog import locks
from trainer.runlog.atomic_file import put_in_place, remove, sync, write_whole
from trainer.runlog.json_file import read_object

SCHEMA = 3
_STATE = "state.json"


class WorkFolder:
    """One result in the making. A context manager; leaving it keeps the folder.

    `key` says what is made from what: a folder left by another key is emptied. `state` is plain
    data that `save` keeps. Raises ManifestError when the result exists (without `force`) or another
    process is making it.
    """

    def __init__(self, out: Path, key: Mapping[str, Any], *, force: bool = False) -> None:
        self.out = out
        self.folder = out.with_name(f".{out.name}.work")
        self.whole = self.folder / f"whole{out.suffix}"  # becomes `out`
        self.state: dict[str, Any] = {}
        self._key = {"schema": SCHEMA, **key}
        self._force = force
        self._lock = -1

    def __enter__(self) -> WorkFolder:
        # Killed between its rename and its end, a command is finished by the same command.
        is_named = self._kept().get("is_whole") and not self.whole.exists()
        if self.out.exists() and not self._force and not is_named:
            raise ManifestError(
                f"{self.out} already exists", hint="choose another name, or --force"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locks.take(self.folder / "lock", mode=0o644)
        except locks.Held:
            raise ManifestError(f"{self.out} is being made by another process") from None
        except OSError as error:
            raise ManifestError(
                f"{self.folder}: {error.strerror}",
                hint="name a file on a disk that can be written and has locks",
            ) from None
        self.state = self._kept()
        if not self.state:
            self.clear()
        elif self.whole.exists():
            remove(self.whole)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _kept(self) -> dict[str, Any]:
        """The state that an earlier process with the same key has left, if any."""
        try:
            state = read_object(self.folder / _STATE)
        except (OSError, ValueError):
            return {}
        return state if state.get("key") == self._key else {}

    def clear(self) -> None:
        """Remove what an earlier process has made."""
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                remove(entry)
        self.state = {"key": self._key}

    def save(self) -> None:
        """Write `state`; it is on the disk afterwards."""
        write_whole(self.folder / _STATE, json.dumps(self.state))

    def publish(self) -> None:
        """Give `whole` its name and remove the folder."""
        sync(self.whole)
        self.state["is_whole"] = True
        self.save()
        put_in_place(self.whole, self.out)
        sync(self.out.parent)
        (self.folder / _STATE).unlink()  # first: a state without its files is worth nothing
        shutil.rmtree(self.folder)
