"""Tracks of one rule folded into one line: an alert as people see it. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from clusterctl.nodes import fold
from clusterctl.report_lines import cut
from dashboards.alerts.rules.base import command_line
from dashboards.model.alert_book import SEVERITIES, Alert, Key, Rule, Track, Unit
from dashboards.model.state import State
from trainer.runlog.output import printable

MOST_PARTS = 4  # names of parts that are written out
LONGEST = 240  # characters of evidence

Item = tuple[Key, Track]


def folded(
    items: Iterable[Item],
    rules: Mapping[str, Rule],
    mutes: Mapping[Key, float],
    state: State,
    cleared_s: float | None = None,
) -> tuple[Alert, ...]:
    """Alerts out of tracks: one for each rule, severity and attention, worst first."""
    groups: dict[tuple[str, str, bool, float | None], list[Item]] = {}
    for key, track in items:
        group = (key[0], track.severity, track.acknowledged, mutes.get(key))
        groups.setdefault(group, []).append((key, track))
    order = {name: place for place, name in enumerate(state.nodes)}
    run = state.run.directory if state.run else ""
    alerts = []
    for (id, severity, acknowledged, muted), members in groups.items():
        members.sort(key=lambda item: (order.get(item[0][1][0], -1), _natural(item[0][1][1])))
        units = tuple(unit for (_, unit), _ in members)
        tracks = [track for _, track in members]
        names, parts = _names_and_parts(units)
        part = next(iter(parts), "")
        command = command_line(rules[id], state.source, _fold(names), part, run)
        alerts.append(
            Alert(
                id=id,
                severity=severity,
                subject=subject(units),
                nodes=names,
                text=_text(tracks, units),
                command=printable(command),
                first_s=min(track.first_s for track in tracks),
                last_s=max(track.last_s for track in tracks),
                over_s=max(track.over_s for track in tracks),
                acknowledged=acknowledged,
                muted_until_s=muted,
                cleared_s=cleared_s,
                units=units,
                is_known=any(track.seen != 0 for track in tracks),
                could_not_ask=rules[id].could_not_ask,
            )
        )
    return worst_first(alerts)


def _names_and_parts(units: Sequence[Unit]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Each name of a node and of a part once, in order."""
    names = dict.fromkeys(name for name, _ in units if name)
    parts = dict.fromkeys(part for _, part in units if part)
    return tuple(names), tuple(parts)


def worst_first(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """Then the newest; muted and acknowledged ones come last."""

    def rank(one: Alert) -> tuple[bool, bool, int, float]:
        is_muted = one.muted_until_s is not None
        return is_muted, one.acknowledged, -SEVERITIES.index(one.severity), -one.first_s

    return tuple(sorted(alerts, key=rank))


def subject(units: Sequence[Unit]) -> str:
    """`n[1-3]`, `n4 GPU 3`, `n4 GPU 0,2,5`, `n[1-3] /data`, `n[1-24] 192 GPUs`, a run's name."""
    names, parts = _names_and_parts(units)
    of_gpus = all(part.startswith("GPU ") for part in parts)
    if not names:
        text = ", ".join(parts)
    elif not parts:
        text = _fold(names)
    elif len(names) > 1 and len(parts) > 1:
        text = f"{_fold(names)} {len(units)} {'GPUs' if of_gpus else 'parts'}"
    elif of_gpus:
        text = f"{_fold(names)} GPU {','.join(part.removeprefix('GPU ') for part in parts)}"
    else:
        more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
        text = f"{_fold(names)} {', '.join(parts[:MOST_PARTS])}{more}"
    return one_line(text)  # the name of a part comes from the node


def _text(tracks: Sequence[Track], units: Sequence[Unit]) -> str:
    """The evidence; of several that differ the earliest one, with its name."""
    texts = {track.breach.text for track in tracks}
    if len(texts) == 1:
        return one_line(texts.pop())
    unit, first = min(zip(units, tracks, strict=True), key=lambda pair: pair[1].first_s)
    name = " ".join(word for word in unit if word)
    return f"{name}: {one_line(first.breach.text)}; and {len(tracks) - 1} more"


def one_line(text: str) -> str:
    """Text of nodes and runs on one line, cut, without characters that move the cursor."""
    return cut(printable(" ".join(text.split())), LONGEST)


@functools.lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """As `nodes.fold`; asked each tick for the same names."""
    return fold(names)


def _natural(part: str) -> tuple[str, int]:
    head, _, number = part.rpartition(" ")
    return (head, int(number)) if number.isdigit() else (part, -1)
