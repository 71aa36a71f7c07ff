"""An explanation as lines of 80 columns for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from checks.units import counted
from clusterctl.jobs.processes import fold_ranks
from clusterctl.launch.causes.kinds import Cause, Kind
from clusterctl.nodes import fold
from clusterctl.payload.secrets.mask import hide
from clusterctl.report_lines import LABEL, WIDTH, Line, labelled
from clusterctl.runs.attempts import DONE, RUNNING, Attempt
from clusterctl.runs.journal import USER_STOP
from clusterctl.why.explain import ENDED_WELL, GOES_ON, STOPPED, Explanation
from trainer.runlog.output import printable

SHOWN_ATTEMPTS = 12
SHOWN_CHANGES = 12
SHOWN_SLOW = 6
QUOTED_LINES = 5  # of one line of a log
_GOOD = {
    ENDED_WELL: "nothing is wrong",
    GOES_ON: "nothing has failed so far",
    STOPPED: "nothing is wrong: it was asked to stop",
}
_STYLES = {ENDED_WELL: "good", GOES_ON: "good", STOPPED: "warn"}


def lines(found: Explanation, *, is_quiet: bool = False) -> Iterator[Line]:
    """With `is_quiet` the verdict alone."""
    if is_quiet:
        yield from _cause(found)
        return
    yield from labelled("run", str(found.run_dir))
    yield from labelled("state", f"{found.state}: {found.text}", _STYLES.get(found.state, "bad"))
    if len(found.attempts) > 1:
        for one in found.attempts[-SHOWN_ATTEMPTS:]:
            yield from _attempt(
                one, is_told=found.verdict is not None and one.number == found.number
            )
    yield from _cause(found)
    verdict = found.verdict
    if verdict is None:
        yield from _slow(found)
        yield from _unread(found)
        return
    if found.meaning:
        known = "" if found.signature or not _needs_signature(verdict.cause) else "unknown error: "
        yield from labelled("meaning", f"{known}{found.meaning}")
    if found.context:
        yield from labelled("log", found.log)
        for line in found.context:
            yield from _quoted(line)
    if found.victims:
        yield from labelled("cascade", _followed(found))
    for index, clue in enumerate(found.clues):
        yield from labelled("" if index else "also", clue)
    if found.stacks:
        yield from labelled("stacks", found.stacks)
    yield from _slow(found)
    yield from _changes(found)
    if found.advice:
        yield from labelled("do", found.advice, "bold")
    yield from _unread(found)


def _cause(found: Explanation) -> Iterator[Line]:
    verdict = found.verdict
    if verdict is None:
        said = _GOOD.get(found.state, "unknown")
        yield from labelled("cause", said, _STYLES.get(found.state, "warn"))
        return
    which = f"attempt {found.number}: " if len(found.attempts) > 1 else ""
    if verdict.cause is None:
        yield from labelled("cause", f"{which}cannot tell, because {verdict.why_not}", "warn")
        for candidate in verdict.candidates:
            yield from labelled("", hide(candidate.sentence))
        return
    yield from labelled("cause", f"{which}{_sentence(verdict.cause, verdict.ranks)}", "bad")
    if not verdict.is_recorded and found.attempts:
        yield from labelled("", "(judged now from the logs and the journal)", "dim")


def _sentence(cause: Cause, ranks: tuple[int, ...]) -> str:
    if cause.rank is None and ranks:
        on = f"{_ranks(ranks)}{f' ({cause.node})' if cause.node else ''}"
        said = f": {cause.evidence.line}" if cause.evidence else ""
        return hide(f"{cause.name} on {on}{said}")
    more = f", also on {_ranks([one for one in ranks if one != cause.rank])}"
    return hide(f"{cause.sentence}{more if len(ranks) > 1 else ''}")


def _needs_signature(cause: Cause | None) -> bool:
    return cause is not None and cause.kind == Kind.WORKER_EXCEPTION


def _followed(found: Explanation) -> str:
    assert found.verdict is not None
    parts = ", ".join(f"{count} {how}" for how, count in found.victims.items())
    unnamed = sum(one.rank is None for one in found.verdict.victims)
    ranks = found.verdict.victim_count - unnamed
    logs = f"{counted(unnamed, 'log')} of an unknown rank"
    number = " and ".join(
        [*([counted(ranks, "rank")] if ranks else []), *([logs] if unnamed else [])]
    )
    blaming = sum(one.kind.is_consequence for one in found.verdict.victims)
    how = "followed"
    if found.verdict.cause is None:
        one = found.verdict.victim_count == 1
        how = "ended without a reason" if not blaming else "blames" if one else "blame"
        how += " another one" if blaming else ""
    return f"{number} {how}: {parts}"


def _attempt(one: Attempt, *, is_told: bool) -> Iterator[Line]:
    ending = {DONE: "ended well", USER_STOP: "stopped", RUNNING: "no end so far"}.get(
        one.ending, one.ending
    )
    steps = f", steps {one.first}-{one.last}" if one.first is not None else ", no step"
    nodes = f" on {fold(one.nodes)}" if one.nodes else ""
    text = f"{one.number}{nodes}{steps}: {ending}"
    yield f"{'attempt':<{LABEL}}{text}"[:WIDTH], "bold" if is_told else None


def _changes(found: Explanation) -> Iterator[Line]:
    changes = found.changes
    if changes is None:
        return
    if not changes.since:
        text = "there is no earlier attempt or run of this config that worked to compare with"
        yield from labelled("changed", text, "dim")
        return
    if not changes.changes:
        yield from labelled("changed", f"nothing that is recorded, since {changes.since}")
    else:
        yield from labelled("changed", f"since {changes.since}:")
    for what, before, now in changes.changes[:SHOWN_CHANGES]:
        yield from labelled("", f"{what}: {before} -> {now}")
    left = len(changes.changes) - SHOWN_CHANGES
    if left > 0:
        yield from labelled("", f"and {counted(left, 'other change')} (--json has all)")
    if changes.not_recorded:
        yield from labelled(
            "", f"not compared, as runs do not record it: {', '.join(changes.not_recorded)}", "dim"
        )


def _slow(found: Explanation) -> Iterator[Line]:
    for index, spell in enumerate(found.slow[-SHOWN_SLOW:]):
        first, last = spell.slow.since_step, spell.until_step
        steps = f"steps {first}-{last}" if last is not None else f"since step {first}"
        text = f"{steps}: {hide(spell.slow.sentence())}"
        yield from labelled("" if index else "slow", text, "warn")


def _unread(found: Explanation) -> Iterator[Line]:
    for name, why in found.unread.items():
        yield from labelled("NOT READ", f"{name}: {why}", "bad")


def _quoted(line: str) -> Iterator[Line]:
    """A line of a log, whole as far as that takes a few lines: its end may be the proof."""
    text = printable(line.expandtabs())
    whole: dict[str, Any] = {"drop_whitespace": False, "break_on_hyphens": False}
    whole |= {"max_lines": QUOTED_LINES, "placeholder": " ..."}
    parts = textwrap.wrap(text, WIDTH - 4, **whole) or [""]
    for index, part in enumerate(parts):
        yield f"  {'|' if index == 0 else ' '} {part}".rstrip(), "dim"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {fold_ranks(ranks)}"
