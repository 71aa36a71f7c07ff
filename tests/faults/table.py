"""The outcomes of a campaign as a table, one line for each fault, and all faults as one of a document."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from tests.faults.campaign import Outcome
from tests.faults.fault import Fault

MOST = 4  # combinations of classes in a line
HEAD = ("fault", "", "ok", "classes", "detected s", "recovered s", "orphans", "repeated", "missed")


def table(outcomes: Sequence[Outcome], faults: Mapping[str, Fault]) -> Iterable[str]:
    """Times are `median / worst`; the last line is over all faults."""
    rows = [HEAD]
    for name in dict.fromkeys(one.fault for one in outcomes):
        mine = [one for one in outcomes if one.fault == name]
        rows.append((name, faults[name].title if name in faults else "", *_figures(mine)))
    rows.append(("all", "", *_figures(outcomes, with_classes=False)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def reference(faults: Mapping[str, Fault]) -> str:
    """What is done, and what must become of the run, in Markdown."""
    lines = ["| fault | what happens | classes of incidents | exit | compared with |"]
    lines.append("|---|---|---|---|---|")
    for one in faults.values():
        classes = f"`{one.cause}`".replace("|", "\\|") if one.cause else "none: no restart"
        cells = (f"`{one.id}`", one.title, classes, str(one.exit_code), _compared(one))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _compared(one: Fault) -> str:
    if one.exit_code:
        return "-"
    if one.is_same:
        return "the same run undisturbed: samples, losses, last checkpoint"
    return "the clips it names" if one.refuses_clips else "each clip once in an epoch"


def _figures(outcomes: Sequence[Outcome], *, with_classes: bool = True) -> tuple[str, ...]:
    good = sum(not one.wrong for one in outcomes)
    classes = dict.fromkeys(one.classes or "none" for one in outcomes)
    if len(classes) > MOST:  # of runs with several faults each
        classes = dict.fromkeys(sorted({one for some in classes for one in some.split(", ")}))
    sums = [sum(getattr(o, name) for o in outcomes) for name in ("orphans", "repeated", "missed")]
    return (
        f"{good}/{len(outcomes)}",
        " or ".join(classes) if with_classes else "",
        _spread([one.detected_s for one in outcomes]),
        _spread([one.recovered_s for one in outcomes]),
        *map(str, sums),
    )


def _spread(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} / {max(known):.1f}" if known else "-"
