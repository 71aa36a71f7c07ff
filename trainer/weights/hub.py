"""Downloads from the Hugging Face hub: what is fetched and how far it is, while others wait."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.errors import CheckpointError
from trainer.runlog import units
from trainer.runlog.output import LOG
from trainer.runlog.progress import ProgressLine

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # owner/name
LOOK_S = 1.0  # between two looks at what has arrived


def download(repository: str, *, lives: Callable[[], None] = lambda: None, **options: Any) -> Path:
    """The hub's folder, from its local cache if it has it. Raises CheckpointError.

    `lives()` is called in this thread whenever something has arrived.
    """
    hint = f"where there is internet: hf download {repository} --local-dir DIR; then give DIR here"
    try:
        from huggingface_hub import snapshot_download, utils

        if not utils.are_progress_bars_disabled():  # type: ignore[attr-defined]
            utils.disable_progress_bars()  # type: ignore[attr-defined]  # into all ranks' logs
        missing = _missing_bytes(lambda: snapshot_download(repository, dry_run=True, **options))
        if not missing:  # all is there, or the hub cannot be asked and the cache is all there is
            return Path(snapshot_download(repository, **options))
        work = _Work(lambda: snapshot_download(repository, **options))
        _follow(work, repository, missing, lives)
        return Path(work.result())
    except ImportError:
        problem = "the hub needs the package huggingface_hub"
        hint = f"pip install huggingface_hub, or {hint}"
    except Exception as error:  # noqa: BLE001 - its errors come from four HTTP layers
        problem = f"the hub failed: {type(error).__name__}"
    raise CheckpointError(f"{repository} is not a local path, and {problem}", hint=hint)


class _Work:
    """A call in a thread of its own, so that this one can tell how far it is."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._value, self._error = call, None, None  # type: Any, Any, Any
        self.thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


def _missing_bytes(ask: Callable[[], Any]) -> int:
    """0 also where that cannot be found out: then the download says why, or takes the cache."""
    try:
        return sum(file.file_size or 0 for file in ask() if file.will_download)
    except Exception:  # noqa: BLE001 - its errors come from four HTTP layers
        return 0


def _follow(work: _Work, repository: str, missing: int, lives: Callable[[], None]) -> None:
    blobs = _blobs(repository)
    before = seen = _bytes_in(blobs)
    LOG.info("fetching %s from the hub: %s, into %s", repository, units.size(missing), blobs.parent)
    with ProgressLine(f"fetching {repository}") as line:
        while work.thread.is_alive():
            work.thread.join(LOOK_S)
            now = _bytes_in(blobs)
            if now != seen:
                seen = now
                lives()
            if line.is_due():
                done, seconds = max(0, now - before), max(line.seconds(), LOOK_S)
                speed = units.rate(done / seconds)
                line.show(f"{units.size(done)} of {units.size(missing)}, {speed}")


def _blobs(repository: str) -> Path:
    """Where the hub's cache has the files of a repository, also those that are not whole yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"


def _bytes_in(folder: Path) -> int:
    found = 0
    try:
        for path in folder.iterdir():
            found += path.stat().st_size
    except OSError:  # it is not made yet, or a part has just become a whole file
        pass
    return found
