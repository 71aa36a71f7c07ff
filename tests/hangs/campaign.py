"""One job after another: a fault at a time, what dump-stacks says of it, and whether that is right."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.hangs.faults import Fault
from tests.hangs.rig import Job, Late, Loader, Site

NEEDS = {
    "hf_accelerate": "accelerate", "hf_trainer": "transformers", "lightning_module": "lightning",
    "deepspeed_engine": "deepspeed", "colossal_booster": "colossalai",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """`result`: named (right, surely), unsure (right or nobody, with low confidence), wrong (somebody
    else), or not measured."""

    program: str
    loader: str
    fault: str
    rank: int
    result: str
    said: str

    @property
    def is_wrong(self) -> bool:
        return self.result == "wrong"

    @property
    def line(self) -> str:
        place = f"{self.program}, loader {self.loader}, {self.fault} on rank {self.rank}"
        return f"{self.result:8} {place}: {self.said}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    site: Site, folder: Path, program: str, loader: Loader, faults: Sequence[Fault], draw: random.Random
) -> Iterator[Outcome]:  # fmt: skip
    """The faults that a job survives in one job, each other in a job of its own."""
    package = NEEDS.get(program, "torch")
    usable = [one for one in faults if loader.workers or not one.needs_workers]
    if importlib.util.find_spec(package) is None:
        for fault in usable:
            yield Outcome(program, loader.name, fault.name, -1, "-", f"{package} is not installed")
        return
    jobs = [[one for one in usable if not one.ends_the_job]]
    jobs += [[one] for one in usable if one.ends_the_job]
    for number, mine in enumerate(one for one in jobs if one):
        done, rank = 0, -1
        try:
            with Job(site, folder / str(number), program, loader) as job:
                for fault in mine:
                    rank = fault.rank(draw)
                    with fault.begin(job, rank):
                        if fault.hangs:
                            job.until_it_rests()
                        document = job.dump()
                    result, said = judged(fault, rank, document["verdict"])
                    yield Outcome(program, loader.name, fault.name, rank, result, said)
                    done += 1
                    if not fault.ends_the_job:
                        job.until_it_goes_on()
        except Late as late:
            for fault in mine[done:]:
                yield Outcome(program, loader.name, fault.name, rank, "-", str(late))


def judged(fault: Fault, rank: int, verdict: dict[str, Any]) -> tuple[str, str]:
    said = f"{verdict['kind']}, {verdict['confidence']}: {verdict['sentence']}"
    found = {(one["rank"], one["role"] or one["what"]) for one in verdict["suspects"]}
    if any(role == "node" for _, role in found):
        return "-", said  # no node ends here: this machine was too busy for the dump
    if not fault.hangs:
        return ("wrong" if found or verdict["kind"] in ("hang", "desync") else "named"), said
    if any(who != rank for who, _ in found) and verdict["kind"] != fault.kind:
        return "wrong", said
    is_right = any(role in fault.roles for _, role in found) or verdict["kind"] == fault.kind
    return ("named" if is_right and verdict["confidence"] != "low" else "unsure"), said
