"""Many of one kind as one line: what an alert is for people. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from clusterctl.nodes import fold
from clusterctl.printable import printable
from dashboards.alerts.rules.base import command_line
from dashboards.model.alert_book import SEVERITIES, Alert, Rule, Track, Unit
from dashboards.model.state import State

MOST_PARTS = 4  # names of parts that are written out
LONGEST = 240  # characters of evidence


Item = tuple[tuple[str, Unit], Track]


def folded(
    items: Iterable[Item],
    rules: Mapping[str, Rule],
    mutes: Mapping[tuple[str, Unit], float],
    state: State,
    cleared_s: float | None = None,
) -> tuple[Alert, ...]:
    """Alerts out of tracks: of one kind, severity and attention each one, worst first."""
    groups: dict[tuple[str, str, bool, float | None], list[Item]] = {}
    for key, track in items:
        muted = mutes.get(key)
        groups.setdefault((key[0], track.severity, track.acknowledged, muted), []).append(
            (key, track)
        )
    order = {name: place for place, name in enumerate(state.nodes)}
    alerts = []
    for (id, severity, acknowledged, muted), members in groups.items():
        members.sort(key=lambda item: (order.get(item[0][1][0], -1), _natural(item[0][1][1])))
        units = tuple(unit for (_, unit), _ in members)
        names = tuple(dict.fromkeys(name for name, _ in units if name))
        parts = tuple(dict.fromkeys(part for _, part in units if part))
        run = state.run.directory if state.run else ""
        alerts.append(
            Alert(
                id=id,
                severity=severity,
                subject=subject(units),
                nodes=names,
                text=_text([track for _, track in members], units),
                command=printable(
                    command_line(
                        rules[id], state.source, _fold(names), parts[0] if parts else "", run
                    )
                ),
                first_s=min(track.first_s for _, track in members),
                last_s=max(track.last_s for _, track in members),
                over_s=max(track.over_s for _, track in members),
                acknowledged=acknowledged,
                muted_until_s=muted,
                cleared_s=cleared_s,
                units=units,
                is_known=any(track.seen != 0 for _, track in members),
                could_not_ask=rules[id].could_not_ask,
            )
        )
    return worst_first(alerts)


def worst_first(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """Then the newest; what the user knows of comes last."""
    return tuple(
        sorted(
            alerts,
            key=lambda one: (
                one.muted_until_s is not None,
                one.acknowledged,
                -SEVERITIES.index(one.severity),
                -one.first_s,
            ),
        )
    )


def subject(units: Sequence[Unit]) -> str:
    """Where, in short and on one line (a part's name is a node's word)."""
    return one_line(_subject(units))


def _subject(units: Sequence[Unit]) -> str:
    """`n[1-3]`, `n4 GPU 3`, `n4 GPU 0,2,5`, `n[1-3] /data`, `n[1-24] 192 GPUs`, a run's name."""
    names = tuple(dict.fromkeys(name for name, _ in units if name))
    parts = list(dict.fromkeys(part for _, part in units if part))
    if not names:
        return ", ".join(parts)
    whole = _fold(names)
    if not parts:
        return whole
    if len(names) == 1 or len(parts) == 1:
        return f"{whole} {_together(parts)}"
    gpus = all(part.startswith("GPU ") for part in parts)
    return f"{whole} {len(units)} {'GPUs' if gpus else 'parts'}"


def _together(parts: Sequence[str]) -> str:
    numbers = [part.removeprefix("GPU ") for part in parts]
    if all(part.startswith("GPU ") for part in parts):
        return "GPU " + ",".join(numbers)
    more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
    return ", ".join(parts[:MOST_PARTS]) + more


def _text(tracks: Sequence[Track], units: Sequence[Unit]) -> str:
    """The evidence; of several that differ the earliest one, with its name."""
    texts = {track.breach.text for track in tracks}
    if len(texts) == 1:
        return one_line(texts.pop())
    first = min(range(len(tracks)), key=lambda place: tracks[place].first_s)
    name = " ".join(word for word in units[first] if word)
    return f"{name}: {one_line(tracks[first].breach.text)}; and {len(tracks) - 1} more"


def one_line(text: str) -> str:
    """What nodes and runs say, without what would move a terminal's cursor, and not too long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


@functools.lru_cache(maxsize=64)
def _fold(names: tuple[str, ...]) -> str:
    """As `nodes.fold`; asked each tick for the same names."""
    return fold(names)


def _natural(part: str) -> tuple[str, int]:
    head, _, number = part.rpartition(" ")
    return (head, int(number)) if number.isdigit() else (part, -1)
