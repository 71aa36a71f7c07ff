"""`clusterctl watch`: alerts as lines, without screens."""

from __future__ import annotations

import contextlib
import difflib
import errno
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.units import counted
from clusterctl.errors import OutputLost, UsageError
from clusterctl.output import Output
from clusterctl.settings import Settings
from dashboards import select_feed as sources
from dashboards.alerts.engine import RULES, Change, after, changes, rules_of
from dashboards.model import units
from dashboards.model.alert_book import FAIL, SEVERITIES, Alert, AlertBook, Rule
from dashboards.model.samples import Restored, Sample, Tick
from dashboards.model.state import State, initial_state, state_of
from dashboards.recording.writer import Recording
from dashboards.reduce import fold
from dashboards.select_feed import Ending, ended_by_signals
from dashboards.watch.exec_hook import Hook, parse_command

STYLES = {"fail": "bad", "warn": "warn", "clear": "good"}


def watch(
    settings: Settings,
    output: Output,
    *,
    run_dir: Path | None,
    replay: Path | None,
    record: Path | None,
    demo: bool,
    interval: float,
    for_s: float | None,
    once: bool,
    wanted: str | None,
    skipped: str | None,
    severity: str,
    hook: str | None,
    hook_timeout: float,
) -> int:
    """Print alerts as they begin and end, until the time is up or a signal; returns the exit code.

    Raises `UsageError` for options that exclude each other, unknown ids and a missing hook,
    `HostfileError` when there is neither a hostfile nor a run.
    """
    if record and (replay or once):
        raise UsageError("--record is for a live watch: not with --replay or --once")
    if once and for_s is not None:
        raise UsageError("--for cannot be used with --once")
    book = replace(AlertBook(), rules=chosen(wanted, skipped), hurry=once and replay is None)
    runner = Hook(parse_command(hook), hook_timeout) if hook is not None else None
    lines = Lines(output, severity, runner)
    replayed: sources.Replayed | None = None
    recording: Recording | None = None
    with ended_by_signals() as ending:
        try:
            if replay is not None:
                replayed = sources.replayed(replay)
                batches = replayed.batches
                state = initial_state(replayed.nodes, now_s=0.0, source="replay")
            else:
                feed = sources.live_feed(
                    settings, output, run_dir=run_dir, demo=demo, interval_s=interval
                )
                if record is not None:
                    feed = recording = Recording(feed, record, interval_s=interval)
                batches = sources.live_batches(
                    feed,
                    interval_s=interval,
                    ending=ending,
                    limits=settings.limits,
                    once=once,
                    for_s=for_s,
                )
                state = state_of(feed, interval)
                what = counted(len(feed.nodes), "node") if feed.nodes else "the run"
                kinds = counted(len(rules_of(book)), "kind")
                if not once:
                    output.note(f"watching {what} for {kinds} of alerts; Ctrl-C ends", "dim")
            state = replace(state, alerts=book)
            begin_s: float | None = None
            note = ""
            for batch in batches:
                if recording is not None and recording.note != note:
                    note = recording.note
                    output.warn(note, "warn")
                if ending.is_set():
                    break
                state = _fold(state, batch, lines)
                begin_s = state.now_s if begin_s is None else begin_s
                if replayed and for_s is not None and state.now_s - begin_s >= for_s:
                    break
        finally:
            if runner is not None:
                runner.close()
                lines.show_problems()
        return lines.end(state, ending, damage=replayed.damage() if replayed else "")


def chosen(wanted: str | None, skipped: str | None) -> tuple[Rule, ...]:
    """Rules by ids or subjects, `gpu,clock.step`. Raises `UsageError` for an unknown one."""
    yes, no = _ids(wanted), _ids(skipped)
    known = {id for rule in RULES for id in _names(rule)}
    for word in (*yes, *no):
        if word not in known:
            near = difflib.get_close_matches(word, sorted(known), 1)
            hint = f"did you mean {near[0]}?" if near else "clusterctl watch --list shows all"
            raise UsageError(f"no alert is called {word!r}", hint=hint)
    rules = [rule for rule in RULES if (not yes or _names(rule) & yes) and not _names(rule) & no]
    if not rules:
        raise UsageError("no alert is left to watch for")
    return tuple(rules)


def show_rules(output: Output) -> None:
    """All alerts with their limits."""
    if output.json:
        output.document(
            "watch",
            alerts=[
                {
                    "id": rule.id,
                    "severity": rule.severity,
                    "meaning": rule.meaning,
                    "limit": rule.threshold,
                    "begins_after_s": rule.after_s,
                    "ends_after_s": rule.clear_s,
                    "part_of": list(rule.suppressed_by),
                }
                for rule in RULES
            ],
        )
        return
    times = [(units.duration(rule.after_s), units.duration(rule.clear_s)) for rule in RULES]
    rows = [[r.id, r.severity.upper(), *t, r.threshold] for r, t in zip(RULES, times, strict=True)]
    output.table(["ALERT", "WORD", "BEGINS", "ENDS", "LIMIT"], rows, right=["BEGINS", "ENDS"])


def _ids(text: str | None) -> set[str]:
    return {word.strip() for word in (text or "").split(",") if word.strip()}


def _names(rule: Rule) -> set[str]:
    return {rule.id, rule.id.partition(".")[0]}


def _fold(state: State, batch: Sequence[Sample], lines: Lines) -> State:
    """The state after a batch; its alerts are shown tick by tick.

    The first batch may hold minutes: an alert may begin and end within them.
    """
    ends = [place for place, sample in enumerate(batch, 1) if isinstance(sample, Tick)]
    for begin, end in itertools.pairwise([0, *ends, len(batch)]):
        before, part = state.alerts, batch[begin:end]
        state = fold(state, part)
        if any(isinstance(sample, Restored) for sample in part):
            # The alerts of the recording are not those that this watch is asked for.
            state = replace(state, alerts=after(before, state))
        lines.show(changes(before, state.alerts, state), state)
    return state


class Lines:
    """Writes changes as lines or JSON, gives them to the hook, and computes the exit code."""

    def __init__(self, output: Output, severity: str, hook: Hook | None) -> None:
        self._output, self._hook = output, hook
        self._least = SEVERITIES.index(severity)
        self._fired = 0
        self._worst = 0  # 1 a fault was seen, 3 only that something could not be read

    def show(self, found: Iterable[Change], state: State) -> None:
        for change in found:
            kind, alert = change.kind, change.alert
            if SEVERITIES.index(alert.severity) < self._least:
                continue
            if kind == "worse" and self._least == SEVERITIES.index(FAIL):
                kind = "fire"  # the warning before was left out
            if kind != "clear":
                self._fired += kind == "fire"
                code = 3 if alert.could_not_ask else 1
                self._worst = min(code, self._worst or code)
            document = {"type": kind, "time_s": state.now_s, "alert": as_json(alert)}
            if self._hook is not None:
                self._hook.put({"schema": 1, "command": "watch", **document})
            with self._written_later():
                if self._output.json:
                    self._output.document("watch", **document)
                elif not self._output.quiet:
                    self._line(kind, alert, state)
        with self._written_later():
            self.show_problems()

    @contextlib.contextmanager
    def _written_later(self) -> Iterator[None]:
        """A full disk must not end the watch, which is there to tell of such things: what it could
        not write stays in memory, 8 KiB of it, and comes with a later line."""
        try:
            yield
        except OutputLost as error:
            if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _line(self, kind: str, alert: Alert, state: State) -> None:
        output, head = self._output, f"{alert.id}  {alert.subject}"
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.now_s))
        if kind == "clear":
            lasted = units.duration(state.now_s - alert.first_s)
            output.line(f"{at} clear {head}  after {lasted}", STYLES["clear"])
        else:
            severity, style = alert.severity.upper(), STYLES[alert.severity]
            output.line(f"{at} {severity:5} {head}  {alert.text}", style)
            if output.verbose:
                meaning = next(rule.meaning for rule in RULES if rule.id == alert.id)
                output.line(f"{' ' * 20}{meaning}", "dim")
            output.line(f"{' ' * 20}try: {alert.command}", "dim")
        sys.stdout.flush()  # a log is read while it grows

    def show_problems(self) -> None:
        for problem in self._hook.problems() if self._hook is not None else ():
            if self._output.json:
                self._output.document("watch", type="hook-failed", text=problem)
            else:
                self._output.warn(problem, "warn")

    def end(self, state: State, ending: Ending, damage: str) -> int:
        """Print the verdict; returns the exit code. `damage` of a recording makes it unknown."""
        output = self._output
        if damage and not output.json:
            output.warn(damage, "warn")
        active = [a for a in state.alerts.active if SEVERITIES.index(a.severity) >= self._least]
        silent, unread = state.count_silent(), state.run.unread if state.run else ""
        code = self._worst or (3 if silent or unread or damage else ending.exit_code)
        text = f"{counted(self._fired, 'alert')}, {len(active)} still there"
        text += f"; {silent} of {len(state.nodes)} nodes give no readings" if silent else ""
        text += f"; the run is not known: {unread}" if unread else ""
        if output.json:
            document: dict[str, Any] = {"time_s": state.now_s, "fired": self._fired}
            document |= {"active": list(map(as_json, active)), "silent_nodes": silent}
            document["run_unread"] = unread
            output.document("watch", type="end", **document, damage=damage, exit_code=code)
        elif output.quiet:
            output.line(text)
        else:
            output.note(text, "bad" if code in (1, 3) else None)
        return code


def as_json(alert: Alert) -> dict[str, Any]:
    """Keys are API: only ever added. Times are unix seconds of the head's clock."""
    same = ("id", "severity", "subject", "text", "first_s", "last_s", "cleared_s", "could_not_ask")
    return {
        **{name: getattr(alert, name) for name in same},
        "nodes": list(alert.nodes),
        "try": alert.command,
        "over_s": alert.over_s if alert.over_s is None or math.isfinite(alert.over_s) else None,
        "units": [{"node": node, "part": part} for node, part in alert.units],
    }
