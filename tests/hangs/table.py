"""The outcomes as a table: programs by faults, all loaders together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.hangs.campaign import Outcome


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """`named/measured`; `!n` of n that were wrong."""
    faults = list(dict.fromkeys(one.fault for one in outcomes))
    programs = list(dict.fromkeys(one.program for one in outcomes))
    rows = [["", *faults, "all"]]
    for program in [*programs, "all"]:
        mine = [one for one in outcomes if program in ("all", one.program)]
        cells = [_cell([one for one in mine if one.fault == fault]) for fault in faults]
        rows.append([program, *cells, _cell(mine)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _cell(outcomes: Sequence[Outcome]) -> str:
    measured = [one for one in outcomes if one.result != "-"]
    named = sum(one.result == "named" for one in measured)
    wrong = sum(one.is_wrong for one in measured)
    return f"{named}/{len(measured)}" + (f" !{wrong}" if wrong else "") if measured else "-"
