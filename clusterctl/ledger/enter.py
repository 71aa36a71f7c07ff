"""Enters in the ledger on the side of something else: what fails is a sentence, never an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from checks.finding import Report
from clusterctl.ledger.entries import Entry
from clusterctl.ledger.file import LedgerError, append, read
from clusterctl.ledger.write import of_checks


def enter(path: Path, entries: Sequence[Entry], hostfile: Path | None = None) -> str:
    """Append; why it could not be done, "" where it was."""
    try:
        append(path, entries, hostfile=hostfile)
    except LedgerError as error:
        return f"not entered in the history of nodes: {error}"
    return ""


def enter_checks(
    path: Path, report: Report, hostfile: Path, now_s: float, by: str = "preflight"
) -> str:
    """What a preflight found that is new; why it could not be entered, "" where it was."""
    try:
        known = read(path).entries
    except LedgerError as error:
        return f"not entered in the history of nodes: {error}"
    return enter(path, of_checks(report, known, now_s, by), hostfile)
