"""`clusterctl watch`: alerts as lines, without screens."""

from __future__ import annotations

import difflib
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import Settings
from dashboards import select_feed as sources
from dashboards.alerts.engine import HURRY_TICKS, RULES, Change, after, changes, rules_of
from dashboards.lifecycle import Ending, ended_by_signals
from dashboards.model import units
from dashboards.model.alert_book import FAIL, SEVERITIES, Alert, AlertBook
from dashboards.model.fleet import fresh
from dashboards.model.samples import Restored, Tick
from dashboards.model.state import State, initial_state
from dashboards.recording.writer import Recording
from dashboards.reduce import fold
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
        raise UsageError(
            "--record writes down what comes: it goes neither with --replay nor with --once"
        )
    if once and for_s is not None:
        raise UsageError("--once is one look; --for would be longer")
    book = replace(AlertBook(), rules=chosen(wanted, skipped), hurry=once and replay is None)
    runner = Hook(parse_command(hook), hook_timeout) if hook else None
    teller = Teller(output, severity, runner)
    with ended_by_signals() as ending:
        try:
            state = _begin(
                settings,
                output,
                book,
                ending,
                teller,
                run_dir=run_dir,
                replay=replay,
                record=record,
                demo=demo,
                interval_s=interval,
                for_s=for_s,
                once=once,
            )
        finally:
            if runner is not None:
                runner.close()
                teller.tell_problems()
        return teller.end(state, ending)


def chosen(wanted: str | None, skipped: str | None) -> tuple[Any, ...]:
    """Rules by ids or subjects, `gpu,clock.step`. Raises `UsageError` for one that is not there."""
    yes, no = _ids(wanted), _ids(skipped)
    known = {rule.id for rule in RULES} | {rule.id.partition(".")[0] for rule in RULES}
    for word in (*yes, *no):
        if word not in known:
            near = difflib.get_close_matches(word, sorted(known), 1)
            raise UsageError(
                f"no alert is called {word!r}",
                hint=f"did you mean {near[0]}?" if near else "clusterctl watch --list shows all",
            )

    def fits(id: str, words: Iterable[str]) -> bool:
        return id in words or id.partition(".")[0] in words

    rules = tuple(r for r in RULES if (not yes or fits(r.id, yes)) and not fits(r.id, no))
    if not rules:
        raise UsageError("no alert is left to watch for")
    return rules


def _ids(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _begin(
    settings: Settings,
    output: Output,
    book: AlertBook,
    ending: Ending,
    teller: Teller,
    *,
    run_dir: Path | None,
    replay: Path | None,
    record: Path | None,
    demo: bool,
    interval_s: float,
    for_s: float | None,
    once: bool,
) -> State:
    recording: Recording | None = None
    replayed: sources.Replayed | None = None
    if replay is not None:
        replayed = sources.replayed(replay)
        batches = replayed.batches
        state = initial_state(replayed.nodes, now_s=0.0, source="replay")
    else:
        feed = sources.live_feed(
            settings, output, run_dir=run_dir, demo=demo, interval_s=interval_s
        )
        if record is not None:
            feed = recording = Recording(feed, record, interval_s=interval_s)
        limits = settings.limits
        batches = sources.live_batches(
            feed,
            interval_s=interval_s,
            is_over=ending.is_set,
            for_s=for_s,
            rounds_once_settled=HURRY_TICKS + 1 if once else None,
            patience_s=limits.run_s or limits.tcp_s + limits.handshake_s + limits.channel_s + 5.0,
        )
        state = initial_state(
            feed.nodes, now_s=feed.now(), interval_s=interval_s, source=feed.source
        )
        what = f"{len(feed.nodes)} nodes" if feed.nodes else "the run"
        if not once:
            output.note(
                f"watching {what} for {len(rules_of(book))} kinds of alerts; Ctrl-C ends", "dim"
            )
    state = replace(state, alerts=book)
    begun_s: float | None = None
    note = ""
    for batch in batches:
        if recording is not None and recording.note != note:
            note = recording.note
            output.warn(note, "warn")
        if ending.is_set():
            break
        for part in _by_tick(batch):
            before = state.alerts
            state = fold(state, part)
            if any(isinstance(sample, Restored) for sample in part):
                # What was told when it was recorded is not what this watch is asked for.
                state = replace(state, alerts=after(before, state))
            teller.tell(changes(before, state.alerts, state), state)
        begun_s = state.now_s if begun_s is None else begun_s
        if replay is not None and for_s is not None and state.now_s - begun_s >= for_s:
            break
    if replayed is not None:
        teller.tell_damage(replayed.damage())
    return state


def _by_tick(batch: Sequence[Any]) -> Iterable[list[Any]]:
    """A first drain may hold minutes, tick by tick: an alert may begin and end within them."""
    part: list[Any] = []
    for sample in batch:
        part.append(sample)
        if isinstance(sample, Tick):
            yield part
            part = []
    if part:
        yield part


class Teller:
    """Writes changes as lines or JSON, gives them to the hook, and knows the exit code."""

    def __init__(self, output: Output, severity: str, hook: Hook | None) -> None:
        self._output, self._hook = output, hook
        self._least = SEVERITIES.index(severity)
        self._fired = 0
        self._worst = 0  # 1 a fault was seen, 3 only that something could not be asked
        self._damage = ""  # of what is replayed

    def tell(self, found: Iterable[Change], state: State) -> None:
        for change in found:
            kind, alert = change.kind, change.alert
            if SEVERITIES.index(alert.severity) < self._least:
                continue
            if kind == "worse" and self._least == SEVERITIES.index(FAIL):
                kind = "fire"  # as a warning it was none of ours
            if kind != "clear":
                self._fired += kind == "fire"
                code = 3 if alert.could_not_ask else 1
                self._worst = code if self._worst == 0 else min(code, self._worst)
            document = {"type": kind, "time_s": state.now_s, "alert": as_json(alert)}
            if self._output.json:
                self._output.document("watch", **document)
            elif not self._output.quiet:
                self._line(kind, alert, state)
            if self._hook is not None:
                self._hook.put({"schema": 1, "command": "watch", **document})
        self.tell_problems()

    def _line(self, kind: str, alert: Alert, state: State) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.now_s))
        if kind == "clear":
            span = units.span(state.now_s - alert.first_s)
            text = f"{at} clear {alert.id}  {alert.subject}  after {span}"
            self._output.line(text, STYLES["clear"])
        else:
            word = alert.severity.upper()
            self._output.line(
                f"{at} {word:5} {alert.id}  {alert.subject}  {alert.text}", STYLES[alert.severity]
            )
            if self._output.verbose:
                meaning = next(rule.meaning for rule in RULES if rule.id == alert.id)
                self._output.line(f"{' ' * 20}{meaning}", "dim")
            self._output.line(f"{' ' * 20}try: {alert.command}", "dim")
        sys.stdout.flush()  # a log is read while it grows

    def tell_problems(self) -> None:
        for problem in self._hook.problems() if self._hook is not None else ():
            if self._output.json:
                self._output.document("watch", type="hook-failed", text=problem)
            else:
                self._output.warn(problem, "warn")

    def tell_damage(self, damage: str) -> None:
        """What of a recording could not be read: what was wrong then is unknown."""
        self._damage = damage
        if damage and not self._output.json:
            self._output.warn(damage, "warn")

    def end(self, state: State, ending: Ending) -> int:
        """The verdict; returns the exit code."""
        active = [a for a in state.alerts.active if SEVERITIES.index(a.severity) >= self._least]
        silent = len(state.nodes) - len(fresh(state.nodes.values(), state)) if state.watches else 0
        code = self._worst or (3 if silent or self._damage else ending.exit_code)
        words = f"{self._fired} alert{'s' * (self._fired != 1)}, {len(active)} still there"
        words += f"; {silent} of {len(state.nodes)} nodes give no readings" if silent else ""
        if self._output.json:
            self._output.document(
                "watch",
                type="end",
                time_s=state.now_s,
                fired=self._fired,
                active=[as_json(alert) for alert in active],
                silent_nodes=silent,
                damage=self._damage,
                exit_code=code,
            )
        elif self._output.quiet:
            self._output.line(words)
        else:
            self._output.note(words, "bad" if code in (1, 3) else None)
        return code


def as_json(alert: Alert) -> dict[str, Any]:
    """Keys are API: only ever added. Times are unix seconds of the head's clock."""
    return {
        "id": alert.id,
        "severity": alert.severity,
        "subject": alert.subject,
        "nodes": list(alert.nodes),
        "text": alert.text,
        "try": alert.command,
        "first_s": alert.first_s,
        "last_s": alert.last_s,
        "over_s": alert.over_s if alert.over_s is None or math.isfinite(alert.over_s) else None,
        "cleared_s": alert.cleared_s,
        "units": [{"node": node, "part": part} for node, part in alert.units],
        "could_not_ask": alert.could_not_ask,
    }
