"""The one run in W&B that all starts of a run directory continue."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from trainer.errors import one_line
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import read_object
from trainer.trackers.tracker import About, Tracker

_INIT_S = 10.0  # wandb waits 90 s for its server by default
FILE = "wandb.json"  # of a run directory: the id of its run in W&B
STEP = "global_step"
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Wandb(Tracker):
    """`mode` is wandb's: online, or offline for trainer.sync."""

    name: ClassVar[str] = "W&B"
    package: ClassVar[str] = "wandb"

    def __init__(
        self, report: Callable[[str], None], about: About, *, mode: str, project: str
    ) -> None:
        # wandb's reports about itself delay the end of the process by 10 s without their server
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._mode, self._project = mode, project
        self._run: Any = None
        super().__init__(report, about)

    def _without_secrets(self, text: str) -> str:
        key = os.environ.get("WANDB_API_KEY")
        return text.replace(key, "***") if key else text

    def _open(self) -> None:
        if self._mode == "online" and not os.environ.get("WANDB_BASE_URL"):
            refuse_settings_of_others()
        import wandb

        # The service process that init starts logs to stderr of the rank otherwise.
        settings = wandb.Settings(
            init_timeout=_INIT_S, silent=True, console="off", x_disable_stats=True
        )
        self._run = self._begin(wandb, settings)
        # W&B's own count of steps never goes back, and a run that continues from a checkpoint
        # does: what it does again would be dropped.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def _begin(self, wandb: Any, settings: Any) -> Any:
        """The run of this directory: the one that an earlier start has begun, or a new one."""
        about, is_online = self._about, self._mode == "online"
        identity = about.run_dir / FILE
        known, is_there = known_id(identity)
        run_id = known or secrets.token_hex(4)
        keep_id(identity, run_id, is_there)
        config = {**about.config, **about.facts}
        options: dict[str, Any] = {"dir": str(about.run_dir), "project": self._project}
        options |= {"name": about.name, "mode": self._mode, "id": run_id, "allow_val_change": True}
        if is_online:
            options["resume"] = "must" if is_there else "allow"
        try:
            run = wandb.init(config=config, settings=settings, **options)
        except Exception as error:
            if is_online and is_there:
                hint = f"delete {identity.name} in the run directory to begin another one"
                error.args = (f"run {run_id} cannot be continued, {hint}: {one_line(error)}",)
            raise
        if is_online and not is_there:
            keep_id(identity, run_id, True)
        return run

    def _take(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, STEP: step})

    def _end(self, last: Mapping[str, Any]) -> None:
        import wandb

        self._run.summary.update(dict(last))
        self._run.finish()
        wandb.teardown()  # the service has written all only when it has ended


def refuse_settings_of_others() -> None:
    """wandb sends the key to the server of wandb/settings in the current folder. Raises OSError."""
    for place in (Path("wandb/settings"), Path(".wandb/settings")):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        if owner not in (0, os.getuid()):
            what = "wandb would send the API key to the server that it names; delete the file"
            raise OSError(
                f"{place.absolute()} belongs to user {owner}: {what} or set WANDB_BASE_URL"
            )


def keep_id(identity: Path, run_id: str, is_online: bool) -> None:
    """Whether the server has that run is kept beside it."""
    write_whole(identity, json.dumps({"id": run_id, "online": is_online}))


def known_id(identity: Path) -> tuple[str | None, bool]:
    """The id that an earlier start has kept, and whether the server has that run."""
    try:
        found = read_object(identity.parent, identity.name)
    except (OSError, ValueError):
        return None, False
    run_id = found.get("id")
    is_id = isinstance(run_id, str) and ID.fullmatch(run_id) is not None
    return (run_id, found.get("online") is True) if is_id else (None, False)
