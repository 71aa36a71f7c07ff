"""Finished videos into the training's own run in W&B: `python -m trainer.infer.wandb_videos RUN`.

Reads folders of videos as JSON lines on stdin, {"folder": PATH}, and answers each with {"logged":
PATH} or {"error": sentence}, after which nothing more can be logged. The training may write to the
same run meanwhile: this is another writer of it (W&B's shared mode), and the videos have a step of
their own, so older checkpoints come out at their place. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.errors import one_line
from trainer.runlog import samples
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import read_object
from trainer.runlog.validation import LOSSES, Figures
from trainer.trackers.wandb_run import FILE, ID, STEP

CONFIG = "config.json"  # of a run directory
LOGGED = ".wandb.json"  # in a folder whose videos are in W&B
NEW = "new"  # instead of an id: a run of its own
INIT_S, API_S = 30.0, 15


class NotLogged(Exception):
    """Videos cannot be logged; the message is a sentence for people."""


def main(run_dir: Path, save_to: str) -> int:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what wandb prints
    run: Any = None
    try:
        for line in sys.stdin:
            folder = Path(json.loads(line)["folder"])
            if run is None:
                run = open_run(run_dir, save_to)
            log(run, folder)
            print(json.dumps({"logged": str(folder)}), file=out)
        if run is not None:
            run.finish()
    except NotLogged as error:
        print(json.dumps({"error": str(error)}), file=out)
        return 1
    except Exception as error:  # noqa: BLE001 - border of this program: it becomes its answer
        text = f"W&B failed: {one_line(error)}"
        key = os.environ.get("WANDB_API_KEY")
        print(json.dumps({"error": text.replace(key, "***") if key else text}), file=out)
        return 1
    return 0


def open_run(run_dir: Path, save_to: str) -> Any:
    """The training's run, another writer of it. Raises NotLogged."""
    run_id = save_to or _own_id(run_dir)
    if run_id != NEW and not ID.fullmatch(run_id):
        raise NotLogged(f"{run_id!r} is no id of a run in W&B")
    try:
        import wandb
    except ModuleNotFoundError:
        raise NotLogged("W&B is not installed: pip install wandb, or --compute-only") from None
    project = _project(run_dir)
    facts: dict[str, Any] = {"init_timeout": INIT_S, "silent": True, "console": "off"}
    facts |= {"x_disable_stats": True}
    if run_id == NEW:
        settings = wandb.Settings(**facts)
        name = f"{run_dir.name}-samples"
        run = wandb.init(project=project, name=name, dir=str(run_dir), settings=settings)
    else:
        # Shared mode makes a run that is not there: the server is asked first.
        try:
            wandb.Api(timeout=API_S).run(f"{project}/{run_id}" if project else run_id)
        except Exception as error:  # noqa: BLE001 - whatever wandb raises is this sentence
            why = one_line(error)
            is_gone = re.search("not find|not found|404", why, re.IGNORECASE) is not None
            what = f"run {run_id} is gone from W&B" if is_gone else "W&B cannot be reached"
            hint = "--save-to ID names another" if is_gone else "the next start logs them"
            raise NotLogged(f"{what}, so videos stay in {run_dir}/samples; {hint}: {why}") from None
        shared: dict[str, Any] = {
            "mode": "shared",
            "x_primary": False,
            "x_update_finish_state": False,
        }
        settings = wandb.Settings(**facts, **shared, x_label="serve")
        run = wandb.init(project=project, id=run_id, dir=str(run_dir), settings=settings)
    return run


def _own_id(run_dir: Path) -> str:
    try:
        found = read_object(run_dir, FILE)
    except FileNotFoundError:
        raise NotLogged(f"the training of {run_dir.name} has no run in W&B") from None
    except (OSError, ValueError) as error:
        raise NotLogged(f"{run_dir / FILE} cannot be read: {error}") from None
    if found.get("online") is not True:
        raise NotLogged(f"the run of {run_dir.name} in W&B is offline, so no videos are sent to it")
    return str(found.get("id"))


def _project(run_dir: Path) -> str | None:
    try:
        config = read_object(run_dir, CONFIG).get("config")
    except (OSError, ValueError):
        return None
    project = config.get("wandb_project") if isinstance(config, dict) else None
    return project if isinstance(project, str) else None


def log(run: Any, folder: Path) -> None:
    """All videos of a folder, or its losses, once. Raises OSError and ValueError."""
    if (folder / LOSSES).is_file():
        run.log(_losses(folder))
    else:
        found = samples.read(folder)
        place = f"samples/{found.preset or folder.parent.name}"
        run.define_metric(f"{place}/step")
        run.define_metric(f"{place}/*", step_metric=f"{place}/step")
        run.log({**dict(_media(place, folder, found)), f"{place}/step": found.step})
    write_whole(folder / LOGGED, json.dumps({"schema": 1, "run": str(run.id)}) + "\n")


def _losses(folder: Path) -> dict[str, float]:
    """As the training logs its own, at the step of the checkpoint."""
    event = read_object(folder, LOSSES)["event"]
    found = {STEP: float(event["step"])}
    for name in ("model", "ema"):
        if name in event["data"]:
            found |= Figures.from_json(event["data"][name]).tracked(name)
    return found


def _media(place: str, folder: Path, found: samples.Samples) -> Iterator[tuple[str, Any]]:
    import wandb

    for video in found.videos:
        path = folder / video.file
        if not path.is_file():
            continue
        name = f"{place}/{video.index:04d}" + (f"-{video.sample}" if video.sample else "")
        if path.suffix == ".png":
            yield name, wandb.Image(str(path), caption=video.prompt)
        else:
            yield name, wandb.Video(str(path), caption=video.prompt, format="mp4")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
