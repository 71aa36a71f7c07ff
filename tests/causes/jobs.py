"""Real jobs of three gloo ranks on lab nodes: hung by a fault, training, idle, or over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.causes import logs
from tests.causes.state import HANG, MISSED, NOT_MEASURED, RIGHT, WELL, WRONG, Answer, result
from tests.hangs import campaign
from tests.hangs.faults import FAULTS
from tests.hangs.rig import LOADERS, Job, Late, Loader, Site, dump

BROKEN = ("blocked in user code", "asleep in user code", "worker stopped", "left early", "dead")
TRAINING = (
    ("ddp", "none"), ("ddp", "workers"), ("ddp", "pinned"), ("ddp", "persistent"),
    ("fsdp2", "none"), ("fsdp2", "workers"), ("hf_accelerate", "workers"),
    ("hf_accelerate", "persistent"), ("hf_trainer", "workers"), ("colossal_booster", "workers"),
)  # fmt: skip
IDLE = ("prompt", "asleep", "server")
RESULTS = {"named": RIGHT, "unsure": MISSED, "wrong": WRONG, "-": NOT_MEASURED}


def hangs(site: Site, folder: Path, draw: random.Random) -> Iterator[Answer]:
    faults = [FAULTS[name] for name in BROKEN]
    for one in campaign.run(site, folder / "hangs", "ddp", LOADERS["workers"], faults, draw):
        name = f"{one.fault}, rank {one.rank}"
        yield Answer(HANG, name, RESULTS[one.result], one.said)


def healthy(site: Site, folder: Path, draw: random.Random) -> Iterator[Answer]:
    for number, (program, loader) in enumerate(TRAINING):
        place = folder / f"training-{number}"
        for one in campaign.run(site, place, program, LOADERS[loader], [FAULTS["none"]], draw):
            yield Answer(WELL, f"{program}, loader {loader}", RESULTS[one.result], one.said)
        if number == 0:
            yield logs.well(place / "0", "logs of ranks that were stopped in the middle")
    for kind in IDLE:
        try:
            yield _idle(site, folder / f"idle-{kind}" / "0", kind)
        except Late as late:
            yield Answer(WELL, f"idle, {kind}", NOT_MEASURED, str(late))
    yield _said(dump(site.lab, "idle.py"), "no job any more")


def _idle(site: Site, place: Path, kind: str) -> Answer:
    with Job(site, place, "idle", Loader("none", 0, {"IDLE": kind})) as job:
        job.until_it_rests()
        return _said(job.dump(), f"idle, {kind}")


def _said(document: dict[str, object], name: str) -> Answer:
    found = document["verdict"]
    assert isinstance(found, dict)
    named, said = campaign.judged(FAULTS["none"], -1, found)
    is_wrong = document["code"] == 1 or named == "wrong"
    what = NOT_MEASURED if named == "-" else result(True, is_wrong)
    return Answer(WELL, name, what, said)
