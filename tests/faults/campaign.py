"""Rounds of faults: each on nodes of its own, judged by what its run has trained on in the end."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import proof
from tests.faults.fault import Fault
from tests.faults.proof import Compared, History
from tests.faults.rig import Late, Round, render_clips
from tests.faults.setting import Setting


@dataclass(frozen=True)
class Outcome:
    """One round. `wrong` is empty where everything was as it must be."""

    fault: str
    seed: int
    wrong: tuple[str, ...]
    classes: str = ""
    attempts: int = 0
    detected_s: float | None = None
    recovered_s: float | None = None
    repeated: int = 0
    missed: int = 0
    orphans: int = 0
    exit_code: int | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Campaign:
    """Rounds in one folder; `keep` leaves the folders of those that were as they must be, too."""

    directory: Path
    keep: bool = False
    say: Callable[[str], None] = print
    _undisturbed: dict[tuple[int, int, str], History] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        self.clips = self.directory / "clips"
        render_clips(self.clips)

    def round(self, setting: Setting, name: str, seed: int) -> Round:
        self._count += 1
        return Round(self.directory / f"{self._count:03}-{name}", self.clips, setting, seed)

    def undisturbed(self, setting: Setting) -> History:
        """Of a run with as many ranks and steps, to which nothing happens. Raises `Late`."""
        key = (setting.world, setting.steps, setting.config)
        if key not in self._undisturbed:
            plain = Setting(
                setting.nodes, 0, setting.ranks, setting.steps,
                config=setting.config, busy=setting.busy,
            )  # fmt: skip
            with self.round(plain, "undisturbed", 0) as one:
                one.launch()
                code = one.end()
                found = proof.history(one)
                if code or len(one.events("attempt")) != 1 or not found.digests:
                    raise Late(f"the undisturbed run ended with {code}: {one.said()[-2000:]}")
                self._undisturbed[key] = found
            self._drop(one)
        return self._undisturbed[key]

    def run(self, fault: Fault, seed: int) -> Outcome:
        wanted = self.undisturbed(fault.setting) if fault.is_same else None
        begun = time.monotonic()
        with self.round(fault.setting, fault.id, seed) as one:
            outcome = judge(fault, one, wanted, seed)
        outcome = Outcome(**{**asdict(outcome), "seconds": time.monotonic() - begun})
        if not outcome.wrong:
            self._drop(one)
        else:
            made = "".join(f"\n  {text}" for text in one.made)
            self.say(
                f"{fault.id} (seed {seed}): {'; '.join(outcome.wrong)}{made}\n  {one.directory}"
            )
        return outcome

    def _drop(self, one: Round) -> None:
        if not self.keep:
            shutil.rmtree(one.directory, ignore_errors=True)


def judge(fault: Fault, one: Round, wanted: History | None, seed: int) -> Outcome:
    """Launch, let the fault happen, wait for the end, and compare."""
    wrong: list[str] = []
    try:
        if fault.prepare is not None:
            fault.prepare(one)
        one.launch()
        fault.inject(one)
        one.end()
    except Late as late:
        wrong.append(str(late))
    one.repair()
    if not one.run_dir.exists():
        return Outcome(fault.id, seed, (*wrong, *_ended(fault, one), *fault.check(one), *one.notes))
    seen = proof.times(one)
    classes = proof.classes(one.incidents())
    orphans = one.leftovers() if not wrong else []
    wrong += _ended(fault, one)
    wrong += [f"left: {line}" for line in orphans]
    wrong += _recognised(fault, classes)
    wrong += _late(fault, fault.setting.slower, **seen)
    mine = proof.history(one)
    if wanted is not None:
        compared = proof.compare(mine, wanted)
    elif fault.exit_code == 0:
        ranks = fault.setting.ranks
        attempts = [event["data"]["world_size"] for event in one.events("attempt")]
        changes = sum(size != attempts[0] for size in attempts)
        compared = proof.count(mine, ranks, changes * max(attempts))
        if fault.refuses_clips:
            compared = Compared(wrong=compared.wrong)
    else:
        compared = Compared()
    wrong += compared.wrong
    wrong += [f"{compared.repeated} clips repeated"] if compared.repeated else []
    wrong += [f"{compared.missed} clips missed"] if compared.missed else []
    wrong += fault.check(one)
    return Outcome(
        fault.id, seed, tuple(wrong + one.notes), classes, len(one.events("attempt")),
        seen["detected_s"], seen["recovered_s"], compared.repeated, compared.missed, len(orphans),
        one.exit_code,
    )  # fmt: skip


def _ended(fault: Fault, one: Round) -> Iterator[str]:
    if one.exit_code != fault.exit_code:
        yield f"exit code {one.exit_code}, not {fault.exit_code}: {one.said().strip()[-200:]}"


def _recognised(fault: Fault, classes: str) -> Iterator[str]:
    if not re.fullmatch(fault.cause, classes):
        yield f"the incidents are {classes or 'none'}, not {fault.cause or 'none'}"


def _late(
    fault: Fault, slower: float, *, detected_s: float | None, recovered_s: float | None
) -> Iterator[str]:
    for what, took_s, limit_s in (
        ("detected", detected_s, fault.detected_s),
        ("recovered", recovered_s, fault.recovered_s),
    ):
        if limit_s is not None and took_s is None:
            yield f"not {what}"
        elif limit_s is not None and took_s is not None and took_s > limit_s * slower:
            yield f"{what} after {took_s:.1f} s, not within {limit_s * slower:g} s"
