"""Where a run stands: by its supervisor, else by the agents on its nodes, else by its files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.launch import saved_run
from clusterctl.launch.head import supervisor
from clusterctl.launch.head.link import Link
from clusterctl.launch.saved_run import SavedRun
from clusterctl.launch.state import BETWEEN
from clusterctl.nodes import fold
from clusterctl.remote.cluster import Cluster
from clusterctl.runs import agents, owner
from clusterctl.runs.attempts import Account, account
from clusterctl.runs.find import EVENTS_FILE, INCIDENTS_FILE
from clusterctl.runs.journal import (
    Journal,
    after_event,
    after_incident,
    incident_event,
    launcher_event,
)
from clusterctl.runs.step_lines import StepsOfLines, lines_of_steps, size_of
from trainer.runlog import run_files, telemetry

ANSWER_S = 5.0
# Of telemetry: 25,000 steps, half a second. Of a longer run, time is told for those.
LAST_BYTES = 16 << 20
SHOWN_INCIDENTS = 3
_SAVED, _SAVE_FAILED = telemetry.event_mark("checkpoint"), telemetry.event_mark("save-failed")
RUNNING, ALONE, ENDED, LOST = "running", "without supervisor", "ended", "unknown"
RESTARTING, WAITING = BETWEEN


@dataclass(frozen=True, slots=True)
class Saves:
    """The last checkpoint of a run, and the failure of a save since then."""

    last: telemetry.Event | None = None
    failed: telemetry.Event | None = None

    def to_json(self) -> dict[str, Any]:
        failed = self.failed.text if self.failed else None
        if self.last is None:
            return {"checkpoint": None, "save_failed": failed}
        name = Path(str(self.last.data.get("path", ""))).name
        known = {"name": name, "step": self.last.step, "time_s": self.last.time_s}
        return {"checkpoint": known, "save_failed": failed}

    def lines(self) -> Iterator[tuple[str, str | None]]:
        if self.last is not None:
            ago_s = max(0.0, time.time() - self.last.time_s)
            yield f"checkpoint of step {self.last.step}, {units.ago(ago_s)}", None
        if self.failed is not None:
            yield f"NOT SAVED  {self.failed.text}", "bad"


@dataclass(frozen=True, slots=True)
class Status:
    """`state` is running, restarting, waiting, "without supervisor", ended or unknown."""

    run_dir: Path
    state: str
    exit_code: int  # of the command
    account: Account
    supervisor: str = ""  # for people
    picture: Mapping[str, Any] = field(default_factory=dict)  # of the supervisor
    alone: agents.Running | None = None  # as its agents say
    end: str = ""  # how it ended, or why nobody knows
    reason: str = ""  # why it does not run now
    phase_s: float | None = None  # for how long that is so
    end_code: int | None = None
    incidents: tuple[str, ...] = ()  # the last ones
    saves: Saves = Saves()
    unreachable: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        now_s = time.time()
        return {
            "run_dir": str(self.run_dir),
            "state": self.state,
            "exit_code": self.exit_code,
            "phase": self.picture.get("phase") or (self.state if self.reason else None),
            "reason": self.reason or None,
            "phase_s": self.phase_s,
            "supervisor": self.supervisor or None,
            "end": self.end or None,
            "end_exit_code": self.end_code,
            "seconds": self.seconds,
            "attempt": len(self.account.attempts) or None,
            "restarts": self.account.restarts,
            "ettr": self.account.ettr(now_s),
            "lost_s": self.account.lost_s(now_s),
            "counted_from_s": self.account.counted_s,
            "nodes": self.picture.get("nodes"),
            "step": self.picture.get("step"),
            **self.saves.to_json(),
            "agents": self.alone.to_json() if self.alone else None,
            "unreachable": dict(self.unreachable),
        }

    @property
    def seconds(self) -> float | None:
        """From its first attempt to its end; None before."""
        began_s, ended_s = self.account.began_s, self.account.ended_s
        if self.state != ENDED or began_s is None or ended_s is None:
            return None
        return max(0.0, ended_s - began_s)

    def lines(self) -> Iterator[tuple[str, str | None]]:
        """(line, style) for people."""
        style = {RUNNING: "good", ALONE: "warn", WAITING: "warn", RESTARTING: "warn"}
        told = style.get(self.state, "good" if self.end_code == 0 else "bad")
        since = (
            f" (for {units.duration(self.phase_s)})"
            if self.reason and self.phase_s is not None
            else ""
        )
        why = self.end or self.reason
        state = f"{self.state}: {why}{since}" if why else self.state
        yield f"run        {self.run_dir}", None
        yield f"state      {state}", told
        for text, names in self.picture.get("nodes", {}).items():
            yield f"nodes      {fold(names)} {text}", None
        step = self.picture.get("step")
        if step is not None:
            place = f"{step['step']} of {step['steps_total']}, loss {step['loss']:.4f}"
            yield f"step       {place}, {units.measured(step['step_s'])}/step", None
        yield from self.saves.lines()
        if self.alone is not None:
            for line in agents.lines(self.alone):
                yield line, None
        elif self.supervisor:
            yield f"supervisor {self.supervisor}", None
        yield from self._history()
        for name, why in self.unreachable.items():
            yield f"NOT ASKED  {name}: {why}", "bad"

    def _history(self) -> Iterator[tuple[str, str | None]]:
        found, now_s = self.account, time.time()
        if found.attempts:
            newest = found.attempts[-1]
            since = f", from {newest.checkpoint}" if newest.checkpoint else ""
            restarts = counted(found.restarts, "restart")
            took = f"; {units.duration(self.seconds)} in all" if self.seconds is not None else ""
            yield (
                f"attempt    {newest.number} on {fold(newest.nodes)}{since}; {restarts}{took}",
                None,
            )
        ettr, lost = found.ettr(now_s), found.lost_s(now_s)
        if ettr is not None:
            causes = ", ".join(
                f"{cause} {units.duration(seconds)}" for cause, seconds in lost.items()
            )
            told = f"{ettr:.1%} of the time"
            if found.counted_s is not None:
                date = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.counted_s))
                told += f" since {date} (of the whole run: clusterctl report)"
            yield f"effective  {told}{f'; lost: {causes}' if causes else ''}", None
        for text in self.incidents:
            if text not in self.end:  # the line of the state has it
                yield f"incident   {text}", None


def read_status(run_dir: Path) -> Status:
    """Ask what there is to ask. Raises `UsageError` for a file of a supervisor that is damaged."""
    run_dir = run_dir.absolute()
    found, journal, saves, step = _files(run_dir)
    status = _read(run_dir, found, journal)
    if status.picture.get("step") is None and step is not None:
        status = replace(status, picture={**status.picture, "step": asdict(step)})
    return replace(status, saves=saves)


def _read(run_dir: Path, found: Account, journal: Journal) -> Status:
    last = tuple(one.text for one in journal.incidents[-SHOWN_INCIDENTS:])
    if not (run_dir / saved_run.FILE).exists():
        return _ended(run_dir, found, journal, last)
    who = owner.find(run_dir)
    try:
        run = saved_run.read(run_dir)
    except saved_run.OtherVersion as other:
        return _of_other_version(run_dir, other, who, found, last)
    except saved_run.Given as error:
        return Status(run_dir, LOST, 3, found, end=str(error), incidents=last)
    if who is None:
        return _without_supervisor(run, found, last)
    if not who.is_here:
        told = f"{who.text}; ask there"
        running = Status(run_dir, RUNNING, 0, found, told, incidents=last)
        if (between := journal.between) is None:
            return running
        phase = WAITING if between.is_waiting else RESTARTING
        return _not_running(running, phase, between.text, max(0.0, time.time() - between.time_s))
    try:
        with contextlib.closing(Link(owner.socket_path(run.plan.run_id))) as link:
            _, state = link.first_state(ANSWER_S)
    except (OSError, ClusterctlError) as error:
        text = f"its supervisor ({who.text}) does not answer: {error}"
        return Status(run_dir, LOST, 3, found, who.text, end=text, incidents=last)
    picture = state["state"]
    running = Status(run_dir, RUNNING, 0, found, who.text, picture, incidents=last)
    facts = (str(picture["reason"]), float(picture["phase_s"]))
    return _not_running(running, picture["phase"], *facts) if picture["reason"] else running


def _not_running(status: Status, phase: str, reason: str, phase_s: float) -> Status:
    """Of a run that its supervisor starts again, which trains no step now, or that it stops."""
    known = replace(status, reason=reason, phase_s=phase_s)
    return replace(known, state=phase, exit_code=1) if phase in BETWEEN else known


def _ended(run_dir: Path, found: Account, journal: Journal, last: tuple[str, ...]) -> Status:
    end = journal.end
    if end is None:
        if not journal.begins and not found.attempts:
            raise UsageError(f"{run_dir} is no directory of a run that was launched")
        text = "no launcher says how it ended"
        return Status(run_dir, LOST, 3, found, end=text, incidents=last)
    code = 0 if end.exit_code in (0, 130) else 1
    facts = {"end": end.text, "end_code": end.exit_code, "incidents": last}
    return Status(run_dir, ENDED, code, found, **facts)  # type: ignore[arg-type]


def _of_other_version(
    run_dir: Path,
    other: saved_run.OtherVersion,
    who: owner.Owner | None,
    found: Account,
    last: tuple[str, ...],
) -> Status:
    """By its files and its agents; what its supervisor would say may have another shape."""
    by = who.text if who else ""
    end = f"its supervisor is of clusterctl {other.theirs}" if who else f"{other}"
    if who is None:
        end = f"{other}: clusterctl {other.theirs} attach {run_dir} continues with it"
    facts: dict[str, Any] = {"end": end, "incidents": last}
    if other.run_id and other.nodes:
        alone, facts["unreachable"] = _asked(
            supervisor.to_nodes(other.nodes, other.accept_new), other.run_id
        )
        # Shown as what runs; a supervisor that is there is named as such.
        facts["alone"] = alone and (
            alone if who is None else replace(alone, heads=(by,), keeps_s=None)
        )
    code = 0 if who is not None and facts.get("alone") else 3
    return Status(run_dir, RUNNING if who else ALONE, code, found, by, **facts)


def _asked(cluster: Cluster, run_id: str) -> tuple[agents.Running | None, dict[str, str]]:
    """What the agents of a run say; nodes that could not be asked, and why."""
    results = cluster.ask("launch.agents", {"run": run_id})
    silent = {
        one.node.name: one.unreachable.sentence() for one in results if one.unreachable is not None
    }
    running = agents.runs_of(agents.found_by(results))
    return running[0] if running else None, silent | agents.unread_by(results)


def _without_supervisor(run: SavedRun, found: Account, last: tuple[str, ...]) -> Status:
    alone, silent = _asked(supervisor.cluster_of(run), run.plan.run_id)
    text = f"clusterctl attach {run.plan.run_dir} continues with it"
    if run.over:
        text = f"{run.over}; clusterctl attach {run.plan.run_dir} ends what is left of it"
    elif alone is None:
        text = f"no agent of this run found on reachable nodes; {text} from its last checkpoint"
    facts = {"end": text, "incidents": last, "unreachable": silent}
    return Status(run.plan.run_dir, ALONE, 3, found, alone=alone, **facts)  # type: ignore[arg-type]


def _files(run_dir: Path) -> tuple[Account, Journal, Saves, telemetry.StepRecord | None]:
    """Attempts and times by the files of the run directory; torn lines are left out."""
    journal, found = Journal(), StepsOfLines()
    for line in _lines(run_dir / EVENTS_FILE):
        if (event := launcher_event(line)) is not None:
            journal = after_event(journal, event)
    for line in _lines(run_dir / INCIDENTS_FILE):
        if (event := incident_event(line)) is not None:
            journal = after_incident(journal, event)
    saved = failed = step = b""
    path = run_dir / telemetry.FILE
    # Without a launcher's journal, its attempts are known by this file alone.
    is_cut = bool(journal.begins) and size_of(path) > LAST_BYTES
    with contextlib.suppress(OSError):
        for line, is_exact in _end_of(path) if is_cut else lines_of_steps(path, LAST_BYTES):
            found.add(line, is_exact)
            if line.startswith(_SAVED):
                saved, failed = line, b""
            elif line.startswith(_SAVE_FAILED):
                failed = line
            elif line.startswith(telemetry.STEP_MARK):
                step = line
    last = telemetry.decode(step)
    known = last if isinstance(last, telemetry.StepRecord) else None
    saves = Saves(_event(saved), _event(failed))
    if is_cut and (saves.last is None or known is None):  # not for so long
        newest = telemetry.newest(run_dir)
        known, saves = known or newest[0], replace(saves, last=saves.last or newest[1])
    return account(found.steps, journal, is_cut=is_cut or found.is_cut), journal, saves, known


def _end_of(path: Path) -> Iterator[tuple[bytes, bool]]:
    return ((line, True) for line in run_files.lines(path, last=LAST_BYTES))


def _event(line: bytes) -> telemetry.Event | None:
    found = telemetry.decode(line)
    return found if isinstance(found, telemetry.Event) else None


def _lines(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        yield from run_files.lines(path)
