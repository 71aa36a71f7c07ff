"""Alerts out of what the rules find. Pure; no clock, no IO, no Textual.

At each tick a rule (`dashboards.alerts.rules`) finds what is over its limit. The book makes an
alert of it when that lasts, ends it when it has been under the limit for long enough, and folds
alerts of one rule into one line. What cannot be seen now neither makes nor ends an alert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dashboards.alerts.grouping import folded, worst_first
from dashboards.alerts.rules import gpus, nodes, run
from dashboards.alerts.rules.base import RuleContext, keep
from dashboards.model.alert_book import SEVERITIES, Alert, AlertBook, Breach, Key, Rule, Track, Unit
from dashboards.model.state import STALE_INTERVALS, State

RULES: tuple[Rule, ...] = (*run.RULES, *gpus.RULES, *nodes.RULES)
HISTORY = 500
HURRY_TICKS = 4  # readings that are enough with --once


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to alerts between two books: `kind` is fire, worse or clear."""

    kind: str
    alert: Alert


def rules_of(book: AlertBook) -> tuple[Rule, ...]:
    return RULES if book.rules is None else book.rules


def _by_id(book: AlertBook) -> dict[str, Rule]:
    return {rule.id: rule for rule in rules_of(book)}


def after(book: AlertBook, state: State) -> AlertBook:
    """The book after the state was checked once; called once a tick."""
    now_s = state.now_s
    if book.now_s is not None and now_s < book.now_s:
        # A replay went back: what was seen is yet to come.
        book = AlertBook(mutes=book.mutes, limits=book.limits, rules=book.rules, hurry=book.hurry)
    # Between two ticks far apart nothing was read (this machine slept, a recording has a pause):
    # such a pause is time over no limit, and under none.
    longest_s = STALE_INTERVALS * state.interval_s
    passed_s = 0.0 if book.now_s is None else min(now_s - book.now_s, longest_s)
    context = RuleContext(state, book.limits, book.memory)
    seen = _see(context, book)
    tracks: dict[Key, Track] = {}
    ended: list[tuple[Key, Track]] = []
    for rule in rules_of(book):
        breaches = seen[rule.id]
        tracked = (unit for id, unit in book.tracks if id == rule.id)
        for unit in dict.fromkeys([*breaches, *tracked]):
            key = (rule.id, unit)
            before, breach = book.tracks.get(key), breaches.get(unit)
            if breach is not None:
                patience_s = _patience_s(book, rule, breach, state)
                track = _over(before, breach, rule, now_s, passed_s, patience_s)
            else:
                track = _not_over(book.tracks[key], rule, passed_s, rule.known(context, unit))
                if track is None and before is not None and before.fired_s is not None:
                    ended.append((key, before))
            if track is not None:
                tracks[key] = track
    gone = folded(ended, _by_id(book), book.mutes, state, cleared_s=now_s)
    mutes = {key: until_s for key, until_s in book.mutes.items() if until_s > now_s}
    fired = [item for item in tracks.items() if item[1].fired_s is not None]
    return replace(
        book,
        active=folded(fired, _by_id(book), mutes, state),
        history=(*book.history, *gone)[-HISTORY:],
        tracks=tracks,
        mutes=mutes,
        memory=keep(context),
        now_s=now_s,
    )


def _see(context: RuleContext, book: AlertBook) -> dict[str, dict[Unit, Breach]]:
    """What each rule finds, without what another alert about the same unit reports already."""
    rules = rules_of(book)
    seen = {rule.id: {breach.unit: breach for breach in rule.find(context)} for rule in rules}
    for rule in rules:
        for id in rule.suppressed_by:
            if id not in seen:
                continue  # left out by the user
            for unit in list(seen[rule.id]):
                own = book.tracks.get((rule.id, unit))
                if own is not None and own.fired_s is not None:
                    continue  # it was there first
                other = book.tracks.get((id, unit))
                if unit in seen[id]:
                    del seen[rule.id][unit]
                elif other is not None and other.fired_s is not None:
                    # This one keeps it open: a clock that jumped and stays away is one alert.
                    seen[id][unit] = other.breach
                    del seen[rule.id][unit]
    return seen


def _patience_s(book: AlertBook, rule: Rule, breach: Breach, state: State) -> float:
    patience_s = rule.after_s if breach.after_s is None else max(0.0, breach.after_s)
    if book.hurry and rule.at_once:
        return min(patience_s, HURRY_TICKS * state.interval_s)
    return patience_s


def _over(
    track: Track | None,
    breach: Breach,
    rule: Rule,
    now_s: float,
    passed_s: float,
    patience_s: float,
) -> Track | None:
    severity = breach.severity or rule.severity
    if track is None:
        if not breach.starts:
            return None
        track = Track(breach, severity, first_s=now_s, last_s=now_s, seen=0)
    # Time counts while it was seen to be over, not while nothing was seen.
    over_s = track.over_s + (passed_s if track.seen > 0 else 0.0)
    fired_s = now_s if track.fired_s is None and over_s >= patience_s else track.fired_s
    # The worst severity stays until the end; else an alert at the border would come and go.
    worst, known = max(severity, track.severity, key=SEVERITIES.index), track.acknowledged
    return Track(breach, worst, track.first_s, now_s, over_s, fired_s=fired_s, acknowledged=known)


def _not_over(track: Track, rule: Rule, passed_s: float, known: bool) -> Track | None:
    if not known:
        return track if track.seen == 0 else replace(track, seen=0)
    under_s = track.under_s + (passed_s if track.seen < 0 else 0.0)
    clear_s = rule.clear_s if track.breach.clear_s is None else track.breach.clear_s
    if track.fired_s is None or under_s >= clear_s:
        return None
    return replace(track, under_s=under_s, seen=-1)


def changes(before: AlertBook, now: AlertBook, state: State) -> tuple[Change, ...]:
    """Alerts that began, became worse or ended between two books, each kind folded."""
    groups: dict[str, list[tuple[Key, Track]]] = {"fire": [], "worse": []}
    for key, track in now.tracks.items():
        if track.fired_s is None:
            continue
        old = before.tracks.get(key)
        if old is None or old.fired_s != track.fired_s:
            groups["fire"].append((key, track))
        elif old.severity != track.severity:
            groups["worse"].append((key, track))
    found = []
    for kind, items in groups.items():
        found += [Change(kind, alert) for alert in folded(items, _by_id(now), now.mutes, state)]
    if now.now_s != before.now_s:
        found += [Change("clear", alert) for alert in now.history if alert.cleared_s == now.now_s]
    return tuple(found)


def acknowledge(book: AlertBook, key: tuple[str, str], yes: bool = True) -> AlertBook:
    """The alert stays, quietly, until it ends; a node that joins it is a new alert."""
    keys, active = _change(book, key, acknowledged=yes)
    changed = {one: replace(book.tracks[one], acknowledged=yes) for one in keys & set(book.tracks)}
    return replace(book, tracks={**book.tracks, **changed}, active=active)


def mute(book: AlertBook, key: tuple[str, str], until_s: float | None) -> AlertBook:
    """Quiet about these nodes and this rule until then, also when it returns; None: unmute."""
    keys, active = _change(book, key, muted_until_s=until_s)
    mutes = {one: at_s for one, at_s in book.mutes.items() if one not in keys}
    if until_s is not None:
        mutes |= dict.fromkeys(keys, until_s)
    return replace(book, mutes=mutes, active=active)


def _change(
    book: AlertBook, key: tuple[str, str], **fields: Any
) -> tuple[set[Key], tuple[Alert, ...]]:
    """(keys of the alert's tracks, active alerts with these fields of it changed).

    All alerts of the rule where the alert's nodes have changed since it was shown.
    """
    meant = [alert for alert in book.active if alert.key == key]
    meant = meant or [alert for alert in book.active if alert.id == key[0]]
    keys = {(key[0], unit) for alert in meant for unit in alert.units}
    active = (replace(one, **fields) if one in meant else one for one in book.active)
    return keys, worst_first(active)
