"""Files that preflight writes and reads: JUnit for CI, a profile of what a good cluster shows."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.finding import Finding, Report, Verdict
from checks.profile import Profile, ProfileError, profile_from
from clusterctl.errors import UsageError


def junit(report: Report) -> str:
    """A test suite for each node, a case for each check that spoke about it.

    FAIL is a failure, UNKNOWN an error, SKIP is skipped; a warning passes, and its output says so.
    """
    root = xml.Element("testsuites", name="clusterctl preflight", time=f"{report.seconds:.3f}")
    for node in report.nodes:
        mine = [one for one in report.findings if node in one.nodes]
        count = {verdict: sum(one.verdict is verdict for one in mine) for verdict in Verdict}
        suite = xml.SubElement(
            root,
            "testsuite",
            name=node,
            tests=str(len(mine)),
            failures=str(count[Verdict.FAIL]),
            errors=str(count[Verdict.UNKNOWN]),
            skipped=str(count[Verdict.SKIP]),
        )
        for one in mine:
            _case(suite, node, one)
    text = xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(suite: xml.Element, node: str, one: Finding) -> None:
    case = xml.SubElement(suite, "testcase", classname=node, name=one.id)
    words = _printable(one.evidence + (f"\nfix: {one.fix}" if one.fix else ""))
    if one.verdict is Verdict.FAIL:
        xml.SubElement(case, "failure", message=_printable(one.evidence)).text = words
    elif one.verdict is Verdict.UNKNOWN:
        xml.SubElement(case, "error", message=_printable(one.evidence)).text = words
    elif one.verdict is Verdict.SKIP:
        xml.SubElement(case, "skipped", message=_printable(one.evidence))
    elif one.verdict is Verdict.WARN:
        xml.SubElement(case, "system-out").text = f"WARN: {words}"


def _printable(text: str) -> str:
    """XML cannot hold control characters, and a node's words may."""
    return "".join(char if char >= " " or char in "\n\t" else "�" for char in text)


def write(path: Path, text: str) -> None:
    """Write a file of ours. Raises `UsageError`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def profile_text(expected: Mapping[str, str]) -> str:
    """A profile as TOML: what every node showed when it was recorded."""
    lines = [
        (
            "# Written by clusterctl preflight --record; read with --profile. "
            "Thresholds may stand above"
        ),
        "# the table, e.g. clock_skew_warn_s = 0.02, and verdicts in a table [severity].",
        "[expected]",
    ]
    # A JSON string is a TOML string.
    lines += [f"{json.dumps(id)} = {json.dumps(value)}" for id, value in expected.items()]
    return "\n".join(lines) + "\n"


def read_profile(path: Path | None, severity: Mapping[str, str]) -> Profile:
    """The profile of a file, with the verdicts of --severity on top. Raises `UsageError`."""
    data: dict[str, Any] = {}
    if path is not None:
        from clusterctl import toml_file

        try:
            data = toml_file.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be read: {why}") from None
    table = data.get("severity", {})
    data["severity"] = {**(table if isinstance(table, dict) else {}), **severity}
    # "off" and "skip" silence; the others replace a bad verdict.
    off = [id for id, word in data["severity"].items() if str(word).lower() in ("off", "skip")]
    data["severity"] = {id: word for id, word in data["severity"].items() if id not in off}
    data["silence"] = [*data.get("silence", ()), *off]
    try:
        return profile_from(data)
    except (ProfileError, TypeError) as error:
        raise UsageError(f"{path or '--severity'}: {error}") from None
